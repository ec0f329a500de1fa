/** Reads the bodies of HTML forms. Guarantees: the bytes of a value are as they were sent; linear time; never throws. */

/** The first value of each field. Empty: not a form. */
export function readForm(body: Buffer, contentType: string): Map<string, Buffer> {
  const [, type = '', parameters = ''] = /^\s*([^;\s]+)\s*(.*)$/s.exec(contentType) ?? [];
  if (type.toLowerCase() === 'application/x-www-form-urlencoded') return readUrlEncoded(body);
  const [, quoted, plain] = /;\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))/i.exec(parameters) ?? [];
  const boundary = quoted ?? plain;
  if (type.toLowerCase() !== 'multipart/form-data' || boundary === undefined) return new Map();
  return readMultipart(body, boundary);
}

/** A form of a provider has some twenty fields. */
const maxFields = 1000;

function readUrlEncoded(body: Buffer): Map<string, Buffer> {
  const fields = new Map<string, Buffer>();
  for (let start = 0, n = 0; start < body.length && n < maxFields; n++) {
    const end = endOf(body, '&', start);
    const equals = Math.min(endOf(body, '=', start), end);
    const name = unescapeBytes(body.subarray(start, equals)).toString();
    if (!fields.has(name)) fields.set(name, unescapeBytes(body.subarray(equals + 1, end)));
    start = end + 1;
  }
  return fields;
}

function endOf(body: Buffer, mark: string, start: number): number {
  const found = body.indexOf(mark, start);
  return found === -1 ? body.length : found;
}

const [percent, plus, space] = [0x25, 0x2b, 0x20];

/** As bytes: text that is no UTF-8 would be changed. */
function unescapeBytes(bytes: Buffer): Buffer {
  const plain = Buffer.alloc(bytes.length);
  let length = 0;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at] as number;
    const code = byte === percent ? hexOf(bytes[at + 1]) * 16 + hexOf(bytes[at + 2]) : Number.NaN;
    if (!Number.isNaN(code)) at += 2;
    plain[length++] = Number.isNaN(code) ? (byte === plus ? space : byte) : code;
  }
  return plain.subarray(0, length);
}

function hexOf(byte = 0): number {
  if (byte >= 0x30 && byte <= 0x39) return byte - 0x30;
  const lower = byte | 0x20;
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x57 : Number.NaN;
}

const maxHead = 8 * 1024;

/** RFC 7578. The bytes of a part end before the line break of the next boundary. */
function readMultipart(body: Buffer, boundary: string): Map<string, Buffer> {
  const fields = new Map<string, Buffer>();
  const delimiter = Buffer.from(`\r\n--${boundary}`);
  const first = body.subarray(0, delimiter.length - 2).equals(delimiter.subarray(2))
    ? -2
    : body.indexOf(delimiter);
  for (let at = first, n = 0; at !== -1 && n < maxFields; n++) {
    const start = at + delimiter.length;
    const end = body.indexOf(delimiter, start);
    if (end === -1 || body.toString('latin1', start, start + 2) === '--') break;
    const part = body.subarray(start, end);
    const head = part.indexOf('\r\n\r\n');
    const [, name] =
      /^content-disposition:[^\r\n]*;\s*name="([^"\r\n]*)"/im.exec(
        part.toString('utf8', 0, Math.min(head, maxHead)),
      ) ?? [];
    if (head !== -1 && name !== undefined && !fields.has(name)) fields.set(name, part.subarray(head + 4));
    at = end;
  }
  return fields;
}
