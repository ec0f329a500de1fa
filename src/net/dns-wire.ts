/**
 * Asks a DNS server without c-ares, for what c-ares refuses: names with other characters than a host name has (RFC 2181 §11 allows
 * every character; SPF macros make such names), and TXT records without any text. Only dns.ts uses it. By hand, because dns-packet
 * saves the half of this file that reads records and needs a package with types beside it.
 * Guarantees: never rejects; any bytes give a result or an error code; an answer to another question is ignored.
 */
import { randomInt } from 'node:crypto';
import dgram from 'node:dgram';
import { on } from 'node:events';
import { connect, isIPv6, SocketAddress } from 'node:net';

/** TXT is all its strings joined, SOA is the serial number. */
export interface RecordValues {
  A: string;
  AAAA: string;
  CNAME: string;
  MX: { priority: number; exchange: string };
  NS: string;
  PTR: string;
  SOA: number;
  TXT: string;
}

type RecordType = keyof RecordValues;

interface WireQuestion<Type extends RecordType> {
  /** As `getServers` writes an address. */
  server: string;
  name: string;
  type: Type;
  timeoutMs: number;
  signal: AbortSignal;
}

/** RFC 1035 §3.2.2, RFC 3596 §2.1. */
const typeCodes = { A: 1, NS: 2, CNAME: 5, SOA: 6, PTR: 12, MX: 15, TXT: 16, AAAA: 28 };
/** RFC 1035 §4.1.1, in the words of c-ares. */
const failures = ['', 'EFORMERR', 'ESERVFAIL', 'ENOTFOUND', 'ENOTIMP', 'EREFUSED'];
const headerBytes = 12;
const [isResponse, isTruncated, recursionDesired] = [0x8000, 0x0200, 0x0100];

/** Returns the values, or an error code of c-ares. */
export async function askByWire<Type extends RecordType>(
  question: WireQuestion<Type>,
): Promise<RecordValues[Type][] | string> {
  const { server, name, type, timeoutMs, signal } = question;
  const query = writeQuery(name, type);
  if (!query) return 'EBADNAME';
  const timeout = AbortSignal.timeout(timeoutMs);
  const limit = AbortSignal.any([signal, timeout]);
  try {
    const byUdp = await askByUdp(server, query, limit);
    const isWhole = (byUdp.readUInt16BE(2) & isTruncated) === 0;
    return readAnswer(isWhole ? byUdp : await askByTcp(server, query, limit), query, type);
  } catch (error) {
    if (limit.aborted) return timeout.aborted ? 'ETIMEOUT' : 'ECANCELLED';
    const { code } = error as NodeJS.ErrnoException;
    return code?.startsWith('ECONN') ? 'ECONNREFUSED' : 'EBADRESP';
  }
}

/** Null: a name that DNS cannot have (RFC 1035 §2.3.4). */
function writeQuery(name: string, type: RecordType): Buffer | null {
  const labels = name
    .replace(/\.$/, '')
    .split('.')
    .map((label) => Buffer.from(label, 'latin1'));
  const isPossible = labels.every(({ length }) => length >= 1 && length <= 63);
  const encoded = labels.flatMap((label) => [Buffer.from([label.length]), label]);
  const written = Buffer.concat([...encoded, Buffer.from([0])]);
  if (!isPossible || written.length > 255) return null;
  // A random id and the random port of the socket make a forged answer unlikely (RFC 5452).
  const header = [randomInt(0x10000), recursionDesired, 1, 0, 0, 0];
  return Buffer.concat([...header.map(uint16), written, uint16(typeCodes[type]), uint16(1)]);
}

async function askByUdp(server: string, query: Buffer, signal: AbortSignal): Promise<Buffer> {
  const { address, port, family } = readServer(server);
  const socket = dgram.createSocket(family === 'ipv6' ? 'udp6' : 'udp4');
  try {
    const messages = on(socket, 'message', { signal });
    // Connected: only this server's packets arrive, and a closed port is an error.
    socket.connect(port, address, () => socket.send(query));
    for await (const [message] of messages) if (isAnswer(message, query)) return message;
    throw new Error('unreachable: the socket has no end');
  } finally {
    socket.close();
  }
}

async function askByTcp(server: string, query: Buffer, signal: AbortSignal): Promise<Buffer> {
  const { address, port } = readServer(server);
  const socket = connect({ host: address, port, signal });
  socket.write(Buffer.concat([uint16(query.length), query]));
  let bytes = Buffer.alloc(0);
  for await (const chunk of socket) {
    bytes = Buffer.concat([bytes, chunk]);
    const end = bytes.length < 2 ? Infinity : 2 + bytes.readUInt16BE(0);
    if (bytes.length >= end) {
      const message = bytes.subarray(2, end);
      if (!isAnswer(message, query)) break;
      return message;
    }
  }
  throw new Error('The answer ended too early, or is for another question');
}

function readServer(server: string): SocketAddress {
  const [, bracketed, v4 = server, port = '53'] = /^(?:\[(.*)\]|([^:]*))(?::(\d+))?$/.exec(server) ?? [];
  const address = bracketed ?? v4;
  return new SocketAddress({ address, port: Number(port), family: isIPv6(address) ? 'ipv6' : 'ipv4' });
}

/** The id and the question are repeated; some servers change the case of letters. */
function isAnswer(message: Buffer, query: Buffer): boolean {
  const question = (bytes: Buffer) => bytes.toString('latin1', headerBytes, query.length).toLowerCase();
  if (message.length < query.length || message.readUInt16BE(0) !== query.readUInt16BE(0)) return false;
  return (message.readUInt16BE(2) & isResponse) !== 0 && question(message) === question(query);
}

function readAnswer<Type extends RecordType>(
  message: Buffer,
  query: Buffer,
  type: Type,
): RecordValues[Type][] | string {
  const code = message.readUInt16BE(2) & 0xf;
  if (code !== 0) return failures[code] ?? 'EBADRESP';
  const values: RecordValues[Type][] = [];
  let at = query.length;
  for (let left = message.readUInt16BE(6); left > 0; left--) {
    const start = readName(message, at).end;
    const length = message.readUInt16BE(start + 8);
    const data = start + 10;
    at = data + length;
    if (at > message.length) return 'EBADRESP';
    // Aliases on the way to the records are of another type.
    if (message.readUInt16BE(start) === typeCodes[type]) values.push(readers[type](message, data, at));
  }
  return values.length > 0 ? values : 'ENODATA';
}

const readers: { [Type in RecordType]: (message: Buffer, at: number, end: number) => RecordValues[Type] } = {
  A: (message, at) => [0, 1, 2, 3].map((n) => message.readUInt8(at + n)).join('.'),
  AAAA: (message, at) => {
    const groups = [0, 2, 4, 6, 8, 10, 12, 14].map((n) => message.readUInt16BE(at + n).toString(16));
    return new SocketAddress({ address: groups.join(':'), family: 'ipv6' }).address;
  },
  CNAME: (message, at) => readName(message, at).name,
  MX: (message, at) => ({
    priority: message.readUInt16BE(at),
    exchange: readName(message, at + 2).name,
  }),
  NS: (message, at) => readName(message, at).name,
  PTR: (message, at) => readName(message, at).name,
  SOA: (message, at) => message.readUInt32BE(readName(message, readName(message, at).end).end),
  TXT: readText,
};

/** RFC 1035 §3.3.14: strings, each after its length. Some servers send a record without a string. */
function readText(message: Buffer, start: number, end: number): string {
  const strings: Buffer[] = [];
  let at = start;
  while (at < end) {
    const next = at + 1 + message.readUInt8(at);
    strings.push(message.subarray(at + 1, next));
    at = next;
  }
  if (at > end) throw new Error('A string is longer than its record');
  return Buffer.concat(strings).toString();
}

/** RFC 1035 §4.1.4. `end`: the offset after the name. A pointer leads backwards, so that no name is endless. */
function readName(message: Buffer, start: number): { name: string; end: number } {
  const labels: string[] = [];
  let at = start;
  let end = 0;
  let lowest = start;
  for (let length = message.readUInt8(at); length !== 0; length = message.readUInt8(at)) {
    if (length < 0x40) {
      labels.push(message.toString('latin1', at + 1, at + 1 + length));
      at += 1 + length;
    } else {
      end ||= at + 2;
      at = message.readUInt16BE(at) & 0x3fff;
      if (at >= lowest) throw new Error('A name points forwards');
      lowest = at;
    }
  }
  return { name: labels.join('.'), end: end || at + 1 };
}

function uint16(value: number): Buffer {
  return Buffer.from([value >> 8, value & 0xff]);
}
