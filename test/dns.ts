/**
 * A DNS server of the test's own: UDP and TCP on one loopback port, RFC 1035 by hand. It answers from a table that a test may
 * change while it runs, and says what was asked. Give `server.address` to POSTHORN_DNS_SERVERS.
 */
import dgram from 'node:dgram';
import { once } from 'node:events';
import net, { type AddressInfo } from 'node:net';

const types = { A: 1, NS: 2, CNAME: 5, SOA: 6, PTR: 12, MX: 15, TXT: 16, AAAA: 28 } as const;
const codes = { NOERROR: 0, SERVFAIL: 2, NXDOMAIN: 3, NOTIMP: 4, REFUSED: 5, NOTAUTH: 9 } as const;
type RecordType = keyof typeof types;

/**
 * The values of one type: addresses, names, texts of any length, `10 mail.example` for MX, the serial for SOA. Null is a record
 * without any data.
 */
type Records = Partial<Record<RecordType, readonly (string | null)[]>>;
/**
 * `DROP` answers nothing at all, `REFERRAL` points to the root's servers, as one does who has no such zone. Of a list, each
 * question takes one; the last is for good.
 */
export type Answer = Records | Exclude<keyof typeof codes, 'NOERROR'> | 'DROP' | 'REFERRAL';

export interface DnsServer {
  /** `127.0.0.1:port` */
  address: string;
  /** What is asked for now, name and type apart: `server.answer('a.example', { A: ['127.0.0.1'] })`. */
  answer(name: string, ...answers: [Answer, ...Answer[]]): void;
  /** One type of a name by itself, before what `answer` says of the name. */
  answerType(name: string, type: RecordType, ...answers: [Answer, ...Answer[]]): void;
  /** Whatever is asked, before all that is said of names; null for those again. */
  answerAll(answer: Answer | null): void;
  /** Names of which nothing is said: they do not exist, until told otherwise. */
  answerUnknown(answer: Answer): void;
  /** Unknown names do not exist again, and nothing has been asked. */
  reset(): void;
  /** What was asked, in order. */
  questions: readonly Asked[];
  /** How often a name was asked for, with or without a type. */
  count(name: string, type?: RecordType): number;
  /** The process may end while the server listens. */
  unref(): void;
  close(): Promise<void>;
}

interface Asked {
  name: string;
  type: RecordType | undefined;
}

interface Question {
  id: number;
  name: string;
  type: RecordType | undefined;
  /** As it came, to be repeated in the answer. */
  bytes: Buffer;
}

export async function startDns({ ttl = 0 } = {}): Promise<DnsServer> {
  const table = new Map<string, Answer[]>();
  const asked: Asked[] = [];
  let always: Answer | null = null;
  let unknown: Answer = 'NXDOMAIN';

  function reply(message: Buffer, limit: number): Buffer | null {
    const question = readQuestion(message);
    const { name, type } = question;
    asked.push({ name, type });
    if (always !== null) return always === 'DROP' ? null : writeAnswer(question, always, { limit, ttl });
    const answers = table.get(`${name} ${type}`) ?? table.get(name) ?? [unknown];
    const answer = (answers.length > 1 ? answers.shift() : answers[0]) ?? unknown;
    return answer === 'DROP' ? null : writeAnswer(question, answer, { limit, ttl });
  }

  const udp = dgram.createSocket('udp4');
  udp.on('message', (message, peer) => {
    const answer = reply(message, 512);
    if (answer) udp.send(answer, peer.port, peer.address);
  });
  const sockets = new Set<net.Socket>();
  const tcp = net.createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {}).on('close', () => sockets.delete(socket));
    let bytes = Buffer.alloc(0);
    socket.on('data', (chunk) => {
      bytes = Buffer.concat([bytes, chunk]);
      while (bytes.length >= 2 && bytes.length >= 2 + bytes.readUInt16BE(0)) {
        const answer = reply(bytes.subarray(2, 2 + bytes.readUInt16BE(0)), 65_535);
        bytes = bytes.subarray(2 + bytes.readUInt16BE(0));
        if (answer) socket.write(Buffer.concat([uint16(answer.length), answer]));
      }
    });
  });
  const port = await listenOnBoth(udp, tcp);

  return {
    address: `127.0.0.1:${port}`,
    answer(name, ...answers) {
      table.set(key(name), answers);
    },
    answerType(name, type, ...answers) {
      table.set(`${key(name)} ${type}`, answers);
    },
    answerAll(answer) {
      always = answer;
    },
    answerUnknown(answer) {
      unknown = answer;
    },
    questions: asked,
    reset() {
      table.clear();
      always = null;
      unknown = 'NXDOMAIN';
      asked.length = 0;
    },
    count(name, type) {
      return asked.filter((one) => one.name === key(name) && (type === undefined || one.type === type))
        .length;
    },
    unref() {
      tcp.unref();
      udp.unref();
    },
    async close() {
      for (const socket of sockets) socket.destroy();
      tcp.close();
      udp.close();
      await once(udp, 'close');
    },
  };
}

/** A free UDP port may be taken for TCP; then another. */
async function listenOnBoth(udp: dgram.Socket, tcp: net.Server): Promise<number> {
  for (;;) {
    tcp.listen(0, '127.0.0.1');
    await once(tcp, 'listening');
    const { port } = tcp.address() as AddressInfo;
    udp.bind(port, '127.0.0.1');
    const bound = await once(udp, 'listening').catch(() => null);
    if (bound) return port;
    tcp.close();
    await once(tcp, 'close');
  }
}

function readQuestion(message: Buffer): Question {
  const labels: string[] = [];
  let at = 12;
  for (let length = message[at] ?? 0; length > 0; length = message[at] ?? 0) {
    labels.push(message.toString('latin1', at + 1, at + 1 + length));
    at += 1 + length;
  }
  const number = message.readUInt16BE(at + 1);
  const type = (Object.keys(types) as RecordType[]).find((name) => types[name] === number);
  return {
    id: message.readUInt16BE(0),
    name: key(labels.join('.')),
    type,
    bytes: message.subarray(12, at + 5),
  };
}

function writeAnswer(
  question: Question,
  answer: Exclude<Answer, 'DROP'>,
  { limit, ttl }: { limit: number; ttl: number },
): Buffer {
  const { id, bytes } = question;
  if (answer === 'REFERRAL') {
    const referral = writeRecord('', 'NS', 'a.root-servers.net', ttl);
    return Buffer.concat([header(id, 0x8100, { authorities: 1 }), bytes, referral]);
  }
  // Answer, authoritative, recursion desired and available.
  const flags = 0x8580 | (typeof answer === 'string' ? codes[answer] : codes.NOERROR);
  const records = typeof answer === 'string' ? [] : selectRecords(question, answer, ttl);
  const whole = Buffer.concat([header(id, flags, { answers: records.length }), bytes, ...records]);
  // Too long for UDP: the bit that says "ask again over TCP".
  return whole.length <= limit ? whole : Buffer.concat([header(id, flags | 0x0200), bytes]);
}

/** A CNAME comes along with whatever is asked for; what it leads to is in the same entry of the table. */
function selectRecords({ name, type }: Question, records: Records, ttl: number): Buffer[] {
  const alias = type === 'CNAME' ? undefined : (records.CNAME?.[0] ?? undefined);
  const owner = alias ?? name;
  const wanted = type === undefined ? [] : (records[type] ?? []);
  return [
    ...(alias === undefined ? [] : [writeRecord(name, 'CNAME', alias, ttl)]),
    ...wanted.map((value) => writeRecord(owner, type as RecordType, value, ttl)),
  ];
}

function header(id: number, flags: number, { answers = 0, authorities = 0 } = {}): Buffer {
  return Buffer.concat([id, flags, 1, answers, authorities, 0].map(uint16));
}

function writeRecord(name: string, type: RecordType, value: string | null, ttl: number): Buffer {
  const data = value === null ? Buffer.alloc(0) : writeData(type, value);
  return Buffer.concat([
    writeName(name),
    uint16(types[type]),
    uint16(1),
    uint32(ttl),
    uint16(data.length),
    data,
  ]);
}

function writeData(type: RecordType, value: string): Buffer {
  switch (type) {
    case 'A':
      return Buffer.from(value.split('.').map(Number));
    case 'AAAA':
      return writeIpv6(value);
    case 'MX': {
      const [priority = '0', exchange = ''] = value.split(' ');
      return Buffer.concat([uint16(Number(priority)), writeName(exchange)]);
    }
    case 'SOA': {
      const times = [Number(value), 3600, 600, 86_400, 3600].map(uint32);
      return Buffer.concat([writeName('ns.example'), writeName('hostmaster.example'), ...times]);
    }
    case 'TXT': {
      const bytes = Buffer.from(value);
      const strings = Array.from({ length: Math.max(1, Math.ceil(bytes.length / 255)) }, (_, index) =>
        bytes.subarray(index * 255, (index + 1) * 255),
      );
      return Buffer.concat(strings.flatMap((string) => [Buffer.from([string.length]), string]));
    }
    default:
      return writeName(value);
  }
}

function writeIpv6(value: string): Buffer {
  // The URL parser writes a dotted end as two groups.
  const text = new URL(`http://[${value}]`).hostname.slice(1, -1);
  const [head = '', tail] = text.split('::').map((half) => (half === '' ? [] : half.split(':')));
  const groups =
    tail === undefined
      ? [...head]
      : [...head, ...Array.from({ length: 8 - head.length - tail.length }, () => '0'), ...tail];
  return Buffer.concat(groups.map((group) => uint16(Number.parseInt(group, 16))));
}

function writeName(name: string): Buffer {
  const labels = key(name).split('.').filter(Boolean);
  return Buffer.concat([
    ...labels.flatMap((label) => [Buffer.from([label.length]), Buffer.from(label, 'latin1')]),
    Buffer.from([0]),
  ]);
}

function uint16(value: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16BE(value);
  return bytes;
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

function key(name: string): string {
  return name.toLowerCase().replace(/\.$/, '');
}
