/** What an SMTP client sends: correct transactions, which are then damaged, shuffled, pipelined and cut in pieces. */
import { mutate } from './mutate.ts';
import type { Random } from './random.ts';

export interface Step {
  bytes: Buffer;
  /** For all that was asked so far to be answered, before the next step. */
  waits: boolean;
}

export interface Script {
  plain: Step[];
  /** What is said once STARTTLS was agreed to; null for a client that then just goes. */
  secured: Step[] | null;
  /** How the bytes of a step are cut. */
  pieces: 'whole' | 'some' | 'bytes';
  ending: 'quit' | 'half-close' | 'leave' | 'stall';
}

/** Known recipients first, and those that nobody here has. */
export interface Names {
  known: string[];
  maxMessageBytes: number;
  maxLineBytes: number;
}

const strangers = [
  'eve@elsewhere.example',
  'postmaster',
  'a@[127.0.0.1]',
  '"a b"@fuzz.example',
  'a%b@fuzz.example',
  'a!b',
  '',
];
const senders = [
  '<ada@example.com>',
  '<>',
  '<ada@example.com>',
  '<"a b"@example.com>',
  'ada@example.com',
  '<a@é.example>',
  '< >',
  '<a',
];
const parameters = [
  '',
  '',
  '',
  ' SIZE=1000',
  ' SIZE=99999999',
  ' SIZE=x',
  ' BODY=8BITMIME',
  ' SMTPUTF8',
  ' X=Y',
  ' SIZE=1 SIZE=1',
  ' BODY=7BIT SMTPUTF8',
  '  ',
];
const others = [
  ...[
    'NOOP',
    'NOOP x',
    'RSET',
    'RSET x',
    'HELP',
    'VRFY',
    'VRFY ada',
    'EXPN list',
    'AUTH PLAIN AGEAYg==',
    'BDAT 10',
    'BDAT 5 LAST',
  ],
  ...[
    'BDAT 3 LAST\r\nabc',
    'ETRN x',
    'TURN',
    'XCLIENT ADDR=1.2.3.4',
    'STARTTLS',
    'STARTTLS x',
    'DATA',
    'DATA x',
    'HELO',
    'EHLO',
    'LHLO x',
  ],
  ...[
    'HELO a',
    'EHLO [::1]',
    'EHLO a\0b',
    'ehlo a.example',
    'MAIL',
    'RCPT',
    'MAIL FROM',
    'RCPT TO:',
    '.',
    '..',
    '',
    ' ',
    '\t',
    'WIZ',
    'DEBUG',
  ],
];
const endings = ['QUIT', 'GET / HTTP/1.1', 'POST / HTTP/1.1\r\nHost: x\r\n'];

const tokens = [
  ...[
    '\r\n',
    '\n',
    '\r',
    '.',
    '..',
    '\r\n.',
    '\r\n.\r\n',
    '\n.\n',
    '\r.\r',
    '\n.\r\n',
    '\r\n.\n',
    '\r\n\0.\r\n',
    '\r\n.\r',
    '\r\r\n.\r\r\n',
  ],
  ...[
    '\0',
    '\xff',
    '\xc3\xa9',
    'a',
    '\r\n.\r\nMAIL FROM:<eve@example.com>\r\n',
    '\n.\nMAIL FROM:<eve@example.com>\nRCPT TO:<b@fuzz.example>\nDATA\n',
  ],
  ...[
    'Message-ID: <1@x>\r\n',
    'Subject: x\r\n',
    '\r\n\r\n',
    ' ',
    '<',
    '>',
    '"',
    ':',
    'DATA\r\n',
    'RSET\r\n',
    'STARTTLS\r\n',
    '\x16\x03\x01\x00\x05',
  ],
];

export function makeScript(random: Random, names: Names): Script {
  const hasTls = random.chance(0.15);
  const plain = makeSteps(random, names);
  if (hasTls) plain.splice(random.below(plain.length + 1), 0, ...makeStartTls(random, names));
  return {
    plain,
    secured: hasTls && random.chance(0.9) ? makeSteps(random, names) : null,
    pieces: random.pick(['whole', 'whole', 'some', 'some', 'bytes']),
    ending: random.chance(0.003)
      ? 'stall'
      : random.pick(['quit', 'quit', 'half-close', 'half-close', 'leave']),
  };
}

/** With what a stranger put behind it in the clear, now and then. */
function makeStartTls(random: Random, names: Names): Step[] {
  const injected = random.chance(0.5) ? makeSteps(random, names).map(({ bytes }) => bytes) : [];
  return [{ bytes: Buffer.concat([Buffer.from('STARTTLS\r\n'), ...injected]), waits: true }];
}

function makeSteps(random: Random, names: Names): Step[] {
  const transactions = random.times(random.between(1, 3), () => makeTransaction(random, names)).flat();
  const lines = random.chance(0.95) ? [line(random, 'EHLO client.example'), ...transactions] : transactions;
  for (const _ of random.some(4, () => null)) damage(random, lines, names);
  const isPipelined = random.chance(0.5);
  return lines.map((bytes) => ({ bytes, waits: !isPipelined && random.chance(0.9) }));
}

function makeTransaction(random: Random, names: Names): Buffer[] {
  const from = `MAIL FROM:${random.chance(0.85) ? '<ada@example.com>' : random.pick(senders)}${random.pick(parameters)}`;
  const to = random.times(random.between(1, 3), () => {
    const address = random.chance(0.85) ? vary(random, random.pick(names.known)) : random.pick(strangers);
    return `RCPT TO:<${address}>${random.chance(0.05) ? random.pick(parameters) : ''}`;
  });
  const commands = [from, ...to, 'DATA'].map((text) => line(random, text));
  return [...commands, makeWire(random, names)];
}

function vary(random: Random, address: string): string {
  const [local = '', domain = ''] = address.split('@');
  return random.pick([
    address,
    address,
    address,
    address.toUpperCase(),
    `${local}+tag@${domain}`,
    `@x.example,@y:${address}`,
    `"${local}"@${domain}`,
  ]);
}

function line(random: Random, text: string): Buffer {
  const end = random.chance(0.95) ? '\r\n' : random.pick(['\n', '\r\r\n', ' \r\n', '\r', '\n\r\n', '\0\r\n']);
  return Buffer.from(`${random.chance(0.03) ? text.toLowerCase() : text}${end}`);
}

/** A message as it travels, most often with its end. */
function makeWire(random: Random, names: Names): Buffer {
  const head = random.chance(0.5) ? `Subject: ${random.below(1e9)}\r\n\r\n` : '';
  const content = random.some(20, () =>
    random.chance(0.7) ? random.pick(tokens) : random.bytes(random.size(30)).toString('latin1'),
  );
  const bulk = random.chance(0.03) ? makeBulk(random, random.pick([1, 1, 2, 3]) * names.maxMessageBytes) : '';
  const end = random.chance(0.9) ? random.pick(['\r\n.\r\n', '\r\n.\r\n', '.\r\n']) : '';
  return Buffer.from([head, ...content, bulk, end].join(''), 'latin1');
}

function makeBulk(random: Random, most: number): string {
  const token = random.pick([...tokens, 'a'.repeat(1000)]);
  return token.repeat(Math.ceil((most - 50 + random.below(100)) / token.length));
}

function damage(random: Random, lines: Buffer[], names: Names): void {
  const at = random.below(lines.length);
  const chosen = lines[at] ?? Buffer.alloc(0);
  const other = random.below(lines.length);
  const change = random.pick<() => void>([
    () => lines.splice(at, 1),
    () => lines.splice(at, 0, chosen),
    () => lines.splice(other, 0, ...lines.splice(at, 1)),
    () => lines.splice(at, 0, line(random, random.pick(others))),
    () => lines.splice(at, 0, line(random, random.pick(others))),
    () => lines.splice(at, 0, ...random.times(random.size(60), () => line(random, random.pick(others)))),
    () => random.chance(0.3) && lines.splice(at, 0, line(random, random.pick(endings))),
    () => lines.splice(at, 0, random.bytes(random.size(60))),
    () => lines.splice(at, 0, makeLongLine(random, names)),
    () =>
      lines.splice(
        at,
        1,
        mutate(random, chosen, { dictionary: tokens, others: lines, most: chosen.length + 1000 }),
      ),
  ]);
  change();
  if (lines.length === 0) lines.push(Buffer.from('NOOP\r\n'));
}

function makeLongLine(random: Random, { maxLineBytes }: Names): Buffer {
  const length = maxLineBytes * random.pick([1, 1, 2, 31, 32, 33]) + random.between(-3, 3);
  return Buffer.from(
    `${random.pick(['NOOP ', 'MAIL FROM:<', 'RCPT TO:<a', ''])}${'a'.repeat(length)}${random.chance(0.9) ? '\r\n' : ''}`,
  );
}
