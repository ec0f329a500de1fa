/**
 * Random sessions with the SMTP listener of the whole service. Every command gets one well-formed reply; exactly the acknowledged
 * messages are stored, byte for byte; only known recipients are accepted; and a correct client is served afterwards. A separate
 * model (smtp-model.ts) decides which messages were acknowledged.
 */
import assert from 'node:assert/strict';
import type { TestUser } from '../harness.ts';
import type { Random } from './random.ts';
import { expect, type FuzzedService, startFuzzedService } from './service.ts';
import { Dialogue } from './smtp-dialogue.ts';
import { follow, type Rules, type Taken, type Verdict } from './smtp-model.ts';
import { makeScript, type Script, type Step } from './smtp-script.ts';
import type { Case, Fuzzed, Target } from './target.ts';

const limits = { maxMessageBytes: 16_384, maxLineBytes: 512 };
const timeoutSeconds = 5;
/** The longest wait for a reply, on a busy machine. */
const patienceMs = 120_000;

export const smtp: Target = {
  about: 'dialogues of any bytes with the SMTP server',
  async open(settings) {
    const service = await startFuzzedService({
      ...settings,
      POSTHORN_ROLES: 'api,smtp',
      POSTHORN_MAX_MESSAGE_BYTES: String(limits.maxMessageBytes),
      POSTHORN_SMTP_MAX_LINE_BYTES: String(limits.maxLineBytes),
      POSTHORN_SMTP_COMMAND_TIMEOUT: String(timeoutSeconds),
      POSTHORN_SMTP_DATA_TIMEOUT: String(timeoutSeconds),
      POSTHORN_SMTP_MESSAGE_TIMEOUT: String(2 * timeoutSeconds),
    });
    const users = [await service.makeUser(), await service.makeUser()];
    const run = async (one: Case) => {
      const outcome = await new Attack(service, users, one).run();
      service.assertNoErrors();
      return [outcome];
    };
    return { lanes: 12, run, close: () => service.stop() } satisfies Fuzzed;
  },
};

interface Mailbox {
  owner: TestUser;
  id: string;
  value: string;
}

class Attack {
  readonly #service: FuzzedService;
  readonly #users: readonly TestUser[];
  readonly #one: Case;

  constructor(service: FuzzedService, users: readonly TestUser[], one: Case) {
    this.#service = service;
    this.#users = users;
    this.#one = one;
  }

  async run(): Promise<string> {
    const { random, number, keep } = this.#one;
    const mailboxes = await Promise.all(
      this.#users.map((owner, n) => this.#open(owner, `${'ab'[n]}${number}@fuzz.example`)),
    );
    const known = mailboxes.map(({ value }) => value);
    const rules: Rules = { ...limits, isKnown: (address) => findMailbox(mailboxes, address) !== undefined };
    const script = makeScript(random, { known, ...limits });
    const dialogue = new Dialogue(this.#service.smtpPort);
    try {
      const verdict = await this.#talk(dialogue, script, rules);
      assert.deepEqual([...verdict.faults, ...dialogue.faults], []);
      await this.#compare(mailboxes, verdict.taken);
      if (number % 20 === 0) await this.#sendHonestly(mailboxes, verdict.taken);
      return describe(dialogue, verdict, script);
    } finally {
      keep('sent.json', JSON.stringify({ script: shown(script), ...dialogue.sent }, null, 2));
      keep('replies.json', JSON.stringify(dialogue.replies, null, 2));
      dialogue.close();
      await Promise.all(mailboxes.map((mailbox) => this.#remove(mailbox)));
    }
  }

  async #open(owner: TestUser, value: string): Promise<Mailbox> {
    const { id } = expect(
      await this.#service.call('POST', '/identities', { as: owner, body: { value } }),
      201,
    ).body;
    return { owner, id, value };
  }

  async #remove({ owner, id }: Mailbox): Promise<void> {
    expect(await this.#service.call('DELETE', `/identities/${id}`, { as: owner }), 204);
  }

  async #talk(dialogue: Dialogue, script: Script, rules: Rules): Promise<Verdict> {
    const { random } = this.#one;
    const look = () => follow(dialogue.sent, dialogue.replies, rules);
    const settle = async (): Promise<Verdict> => {
      const isSettled = await dialogue.until(() => look().state !== 'owed', patienceMs);
      const last = JSON.stringify(dialogue.replies.at(-1));
      assert.ok(isSettled, `no reply within ${patienceMs} ms, after ${last}`);
      const verdict = look();
      if (verdict.state !== 'owed') return verdict;
      assert.ok(verdict.mayBeCut || dialogue.isReset, `it went without a word after ${last}`);
      return { ...verdict, state: 'over' };
    };
    const say = async (steps: readonly Step[]) => {
      for (const { bytes, waits } of steps) {
        await dialogue.send(cut(random, bytes, script.pieces));
        if (waits && (await settle()).state === 'tls') return;
      }
    };

    await settle();
    await say(script.plain);
    let verdict = await settle();
    if (verdict.state === 'tls' && script.secured) {
      if (!(await dialogue.secure())) return this.#endInHandshake(dialogue, verdict);
      await say(script.secured);
      verdict = await settle();
    }
    if (script.ending === 'leave' || verdict.state === 'tls') return verdict;
    return this.#end(dialogue, script.ending, settle);
  }

  /** Only what was put in by a stranger can make it fail. */
  #endInHandshake(dialogue: Dialogue, verdict: Verdict): Verdict {
    const injected = /STARTTLS[ \r]*\n[\s\S]/i.test(dialogue.sent.plain);
    assert.ok(injected, 'the TLS handshake failed');
    return { ...verdict, state: 'over' };
  }

  async #end(dialogue: Dialogue, ending: Script['ending'], settle: () => Promise<Verdict>): Promise<Verdict> {
    const isOver = () => dialogue.isOver;
    // Whatever is open, a message or a line, ends with the first of these.
    if (ending === 'quit') await dialogue.send([Buffer.from('\r\n.\r\nQUIT\r\n')]);
    if (ending === 'half-close') dialogue.halfClose();
    const waitMs = ending === 'stall' ? 3000 * timeoutSeconds + patienceMs : patienceMs;
    assert.ok(await dialogue.until(isOver, waitMs), `the connection stayed open after ${ending}`);
    return settle();
  }

  async #compare(mailboxes: readonly Mailbox[], taken: readonly Taken[]): Promise<void> {
    for (const mailbox of mailboxes) {
      const wanted = taken.filter(({ recipients }) => recipients.some((one) => findMailbox([mailbox], one)));
      const stored = await this.#readAll(mailbox);
      const texts = (list: readonly Buffer[]) => list.map((raw) => raw.toString('latin1')).sort();
      // The same message twice, known by its id, is stored once.
      const isRepeatable = wanted.some(({ raw }) => /message-id/i.test(raw.toString('latin1')));
      const unique = (list: string[]) => (isRepeatable ? [...new Set(list)] : list);
      assert.deepEqual(
        unique(texts(stored)),
        unique(texts(wanted.map(({ raw }) => raw))),
        `what is stored for ${mailbox.value} is not what was acknowledged`,
      );
    }
  }

  async #readAll({ owner, id }: Mailbox): Promise<Buffer[]> {
    const list = await this.#service.call('GET', `/messages?identity_id=${id}&limit=200`, { as: owner });
    const headers = { authorization: `Bearer ${owner.apiKey}` };
    return Promise.all(
      expect(list, 200).body.map(async (message: { id: string }) => {
        const answer = await fetch(`${this.#service.url}/messages/${message.id}/raw`, { headers });
        return Buffer.from(await answer.arrayBuffer());
      }),
    );
  }

  async #sendHonestly(mailboxes: readonly Mailbox[], before: readonly Taken[]): Promise<void> {
    const recipients = mailboxes.map(({ value }) => value);
    const raw = Buffer.from(`Subject: honest ${this.#one.number}\r\n\r\n.dots\r\n`);
    const wire = `${raw}`.replaceAll('\r\n.', '\r\n..');
    const client = new Dialogue(this.#service.smtpPort);
    const lines = [
      'EHLO honest.example',
      'MAIL FROM:<ada@example.com>',
      ...recipients.map((to) => `RCPT TO:<${to}>`),
      'DATA',
      `${wire}.`,
      'QUIT',
    ];
    for (const [n, text] of lines.entries()) {
      assert.ok(
        await client.until(() => client.replies.length > n, patienceMs),
        'an honest client waits in vain',
      );
      await client.send([Buffer.from(`${text}\r\n`)]);
    }
    assert.ok(await client.until(() => client.isOver, patienceMs), 'an honest client is not let go');
    const statuses = client.replies.map(({ status }) => status);
    assert.deepEqual(statuses, [220, 250, 250, 250, 250, 354, 250, 221], 'an honest client is not served');
    await this.#compare(mailboxes, [...before, { raw, recipients }]);
  }
}

function findMailbox(mailboxes: readonly Mailbox[], address: string): Mailbox | undefined {
  const [local = '', domain = ''] = address.toLowerCase().replaceAll(/["\\]/g, '').split('@');
  return mailboxes.find(({ value }) => value === `${local.split('+')[0]}@${domain}`);
}

function cut(random: Random, bytes: Buffer, pieces: Script['pieces']): Buffer[] {
  if (pieces === 'whole' || bytes.length === 0) return [bytes];
  const most = pieces === 'bytes' && bytes.length < 500 ? 1 : Math.max(2, Math.ceil(bytes.length / 4));
  const parts: Buffer[] = [];
  for (let at = 0; at < bytes.length; ) {
    const end = at + random.between(1, most);
    parts.push(bytes.subarray(at, end));
    at = end;
  }
  return parts;
}

function shown(script: Script) {
  const texts = (steps: readonly Step[]) =>
    steps.map(({ bytes, waits }) => ({ bytes: bytes.toString('latin1'), waits }));
  return { ...script, plain: texts(script.plain), secured: script.secured && texts(script.secured) };
}

function describe(dialogue: Dialogue, { state, taken }: Verdict, { ending }: Script): string {
  const statuses = [
    ...new Set(dialogue.replies.map(({ status, text }) => `${status} ${text.slice(0, 5)}`)),
  ].sort();
  return `${ending} ${state} ${taken.length} ${dialogue.sent.secured !== null} ${statuses.join()}`;
}
