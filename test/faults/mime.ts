/**
 * Malformed and hostile MIME. All messages are accepted quickly, stored byte for byte and delivered; the API returns each message,
 * parsed as far as possible or flagged as truncated; the service never crashes and logs no error.
 */
import { gzipSync } from 'node:zlib';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import type { Letter } from './ledger.ts';
import { watchMemory } from './memory.ts';
import { prepareServer, type Server } from './server.ts';
import { addresses, awaitAnnouncements, conclude, prepareTrial, type Trial } from './trial.ts';

type Malice = (random: () => number) => string | Buffer;

const mostAnswerMs = 20_000;
const mostGrowthMb = 300;
/** These messages must be flagged as truncated. */
const flagged = [
  'deep nesting',
  '100,000 headers',
  'one header of 5 MB',
  '100,000 addresses',
  '50,000 parts',
];

export const mime: Fault = {
  about: 'malformed and hostile MIME',
  rounds: { usual: 5, short: 1 },
  boundMs: (rounds) => 120_000 + rounds * 90_000,
  run,
};

const crlf = '\r\n';
const lines = (...all: string[]) => all.join(crlf);

/** The part after From, To and Message-ID: more headers, an empty line, a body. */
const malices: Record<string, Malice> = {
  'deep nesting': (random) => {
    const depth = pick(random, 200, 3000);
    const opened = Array.from({ length: depth }, (_, n) =>
      lines(`Content-Type: multipart/mixed; boundary="b${n}"`, '', `--b${n}`, ''),
    );
    return `${opened.join('')}Content-Type: text/plain${crlf}${crlf}at the bottom${crlf}`;
  },
  'messages within messages': (random) =>
    `Content-Type: message/rfc822${crlf}${crlf}`.repeat(pick(random, 100, 2000)) +
    `Subject: in${crlf}${crlf}x${crlf}`,
  '100,000 headers': () => `${'X-Many: 1\r\n'.repeat(100_000)}Subject: many${crlf}${crlf}body${crlf}`,
  'one header of 5 MB': () => lines(`Subject: ${'s'.repeat(5_000_000)}`, '', 'body', ''),
  'a header folded 50,000 times': () => `Subject: a${'\r\n b'.repeat(50_000)}${crlf}${crlf}body${crlf}`,
  '100,000 addresses': () =>
    lines(`Cc: ${Array.from({ length: 100_000 }, (_, n) => `a${n}@b.example`).join(', ')}`, '', 'body', ''),
  '20,000 references': () =>
    lines(
      `References: ${Array.from({ length: 20_000 }, (_, n) => `<r${n}@b.example>`).join(' ')}`,
      '',
      'body',
      '',
    ),
  'comments within comments': (random) => {
    const depth = pick(random, 1000, 50_000);
    return lines(
      `To: ${'('.repeat(depth)}x${')'.repeat(pick(random, 0, depth))} a@b.example`,
      '',
      'body',
      '',
    );
  },
  '50,000 parts': () =>
    lines(
      'Content-Type: multipart/mixed; boundary=b',
      '',
      ...Array.from({ length: 50_000 }, () => lines('--b', '', 'x')),
      '--b--',
      '',
    ),
  'a boundary that never comes': () =>
    lines('Content-Type: multipart/mixed; boundary="no"', '', '--yes', '', 'x', ''),
  'an empty boundary': () =>
    lines('Content-Type: multipart/mixed; boundary=""', '', '--', '', 'x', '----', ''),
  'a boundary of 100 KB': () => {
    const boundary = 'b'.repeat(100_000);
    return lines(`Content-Type: multipart/mixed; boundary="${boundary}"`, '', `--${boundary}`, '', 'x', '');
  },
  'no closing boundary': () =>
    lines('Content-Type: multipart/alternative; boundary=b', '', '--b', '', 'x', '--b', ''),
  'a bomb of gzip': () =>
    lines(
      'Content-Type: application/gzip; name="bomb.gz"',
      'Content-Transfer-Encoding: base64',
      'Content-Disposition: attachment',
      '',
      gzipSync(Buffer.alloc(50_000_000)).toString('base64').replace(/.{76}/g, `$&${crlf}`),
      '',
    ),
  'html that nests 100,000 deep': () => lines('Content-Type: text/html', '', '<div>'.repeat(100_000), ''),
  'html without an end of a tag': () => lines('Content-Type: text/html', '', '<a '.repeat(300_000), ''),
  'base64 that is none': (random) =>
    lines(
      'Content-Transfer-Encoding: base64',
      '',
      noise(random, 5000)
        .toString('latin1')
        .replace(/[\r\n]/g, '='),
      '',
    ),
  'quoted-printable that is none': () =>
    lines('Content-Transfer-Encoding: quoted-printable', '', '=Z=\u0001=='.repeat(2000), ''),
  'a charset that is not there': () =>
    lines('Content-Type: text/plain; charset="x-\u0000-nowhere"', '', 'h\u00e9', ''),
  'bytes that are no UTF-8': (random) =>
    Buffer.concat([
      Buffer.from(lines('Content-Type: text/plain; charset=utf-8', '', '')),
      noise(random, 4000),
      Buffer.from(crlf),
    ]),
  'UTF-16 that ends half-way': () =>
    Buffer.concat([
      Buffer.from(lines('Content-Type: text/plain; charset=utf-16le', '', '')),
      Buffer.from('h\u0000e\u0000l\u0000\ud800'),
      Buffer.from(crlf),
    ]),
  'charsets that change mid-way': () =>
    lines('Content-Type: text/plain; charset=iso-2022-jp', '', '\u001b$B$3$s\u001b(B\u001b$B', ''),
  NULs: () => lines('Subject: a\u0000b', 'X-\u0000: \u0000', '', `${'\u0000'.repeat(10_000)}`, ''),
  'nothing but NULs': () => `${'\u0000'.repeat(2000)}${crlf}`,
  'encoded words without end': () => lines(`Subject: ${'=?utf-8?b?'.repeat(20_000)}`, '', 'body', ''),
  'encoded words of nonsense': () =>
    lines(`Subject: ${'=?x-none?q?=ZZ=?= =?utf-8?b?////?= =?utf-16?b?2AA=?= '.repeat(500)}`, '', 'body', ''),
  'parameters in 10,000 pieces': () =>
    lines(
      `Content-Type: text/plain${Array.from({ length: 10_000 }, (_, n) => `; name*${n}*=%41%`).join('')}`,
      '',
      'body',
      '',
    ),
  'no header at all': () => `${crlf}only a body${crlf}`,
  'no body and no empty line': () => `Subject: only a header${crlf}`,
  'line ends of every kind': () => 'Subject: a\nX: b\rY: c\r\n\r\nx\ny\rz\r\r\n\n\r\n',
  'one line of 10 MB': () => lines('Subject: long', '', 'x'.repeat(10_000_000), ''),
  'DKIM signatures by the thousand': () =>
    lines(
      ...Array.from(
        { length: 1000 },
        (_, n) => `DKIM-Signature: v=1; a=rsa-sha256; d=d${n}.example; s=s; h=from; bh=x; b=x`,
      ),
      '',
      'body',
      '',
    ),
  'random headers': (random) => {
    const names = [
      'Content-Type',
      'Content-Disposition',
      'Date',
      'From',
      'Reply-To',
      'Subject',
      'In-Reply-To',
    ];
    const header = () =>
      `${names[pick(random, 0, names.length - 1)]}: ${noise(random, 300)
        .toString('latin1')
        .replace(/[\r\n]/g, ' ')}`;
    return lines(...Array.from({ length: 50 }, header), '', 'body', '');
  },
  'noise from the first byte': (random) =>
    Buffer.concat([noise(random, pick(random, 100, 400_000)), Buffer.from(crlf)]),
};

function noise(random: () => number, length: number): Buffer {
  return Buffer.from(Array.from({ length }, () => pick(random, 0, 255)));
}

async function run(lent: FaultRun): Promise<Outcome> {
  const server = await prepareServer(lent);
  await server.start();
  const trial = await prepareTrial(lent, server, { senders: 2 });
  const kinds = new Map<string, string>();
  const broken: string[] = [];
  const memory = watchMemory(server);
  for (let round = 1; round <= lent.rounds; round += 1) {
    const letters = Object.entries(malices).map(([name, make]) => {
      const letter = write(trial, make(lent.random));
      kinds.set(letter.sha256, name);
      return letter;
    });
    const count = letters.length;
    await trial.post.send(round, () => letters.shift());
    const announcedMs = await awaitAnnouncements(trial, 60_000);
    lent.log(
      `round ${round}/${lent.rounds}: ${count} hostile messages, ${trial.post.acknowledged} acknowledged in all, the slowest ` +
        `in ${Math.round(trial.post.slowestMs)} ms, announced ${Math.round(announcedMs)} ms later; ${memory.describe()}`,
    );
  }
  memory.stop();
  if (trial.post.slowestMs > mostAnswerMs)
    broken.push(`an answer took ${Math.round(trial.post.slowestMs)} ms`);
  if (trial.post.broken > 0) broken.push(`${trial.post.broken} SMTP connections broke`);
  if (memory.growthMb() > mostGrowthMb) broken.push(`memory grew by ${memory.growthMb()} MB`);
  if (!server.isRunning()) broken.push('the service has ended');
  broken.push(...server.errors().map((line) => `the service logged: ${line}`));
  broken.push(...(await readAll(server, kinds)));
  const outcome = await conclude(trial);
  return { ...outcome, broken: [...outcome.broken, ...broken] };
}

/** Adds a Message-ID, so that the service recognises a message that is sent twice. */
function write({ ledger }: Trial, malice: string | Buffer): Letter {
  const to = addresses[ledger.letters.length % addresses.length] ?? '';
  const head = `Message-ID: <m${ledger.letters.length}@sender.example>${crlf}`;
  const bytes = Buffer.concat([
    Buffer.from(head),
    typeof malice === 'string' ? Buffer.from(malice, 'latin1') : malice,
  ]);
  return ledger.enter([to], () => bytes);
}

/** The API returns every message, and says what was truncated. */
async function readAll(server: Server, kinds: ReadonlyMap<string, string>): Promise<string[]> {
  const rows = await server.look(
    (sql) => sql<{ id: string; sha256: string }[]>`select id, encode(sha256, 'hex') as sha256 from messages`,
  );
  const broken: string[] = [];
  for (const { id, sha256 } of rows) {
    const response = await server.call('GET', `/messages/${id}`);
    const text = await response.text();
    const name = kinds.get(sha256) ?? '';
    const truncated = response.status === 200 ? JSON.parse(text).truncated : undefined;
    if (!Array.isArray(truncated))
      broken.push(`${name}: GET /messages/${id} gives ${response.status} ${text.slice(0, 200)}`);
    else if (flagged.includes(name) && truncated.length === 0)
      broken.push(`${name}: what is cut of message ${id} is not told`);
  }
  return broken;
}
