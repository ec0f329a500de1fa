import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRelayUrl } from '../src/lib/relay-url.ts';
import { captureMail } from '../src/sending/capture.ts';
import { decide, type Outcome, standardSchedule, type Tried, type Way } from '../src/sending/decide.ts';
import type { Phase, SendErrorCode, TryReply } from '../src/sending/try-reply.ts';

const place = { host: 'mx.example', address: '192.0.2.1', tls: null, uncertain: false };

function reply(code: number, enhanced: string | null = null, phase: Phase = 'rcpt'): TryReply {
  const kind = code < 400 ? 'accepted' : 'refused';
  return { kind, phase, response: { code, enhanced, text: 'x' }, error: null, detail: null, ...place };
}

function failure(error: SendErrorCode, phase: Phase = 'connect'): TryReply {
  return { kind: 'failed', phase, response: null, error, detail: 'x', ...place };
}

function outcomeOf(tried: Tried, { tries = 0, way = 'direct' as Way } = {}): Outcome {
  return decide(tried, { tries, way }, [60, 300], () => 0.5);
}

describe('accepted', () => {
  for (const [way, isDelivered] of [
    ['direct', true],
    ['capture', true],
    ['relay', false],
  ] as const) {
    test(`by ${way}: sent${isDelivered ? ' and delivered' : ''}`, () => {
      assert.deepEqual(outcomeOf(reply(250), { way }), { kind: 'sent', isDelivered });
    });
  }
});

describe('bounced', () => {
  const cases: [string, Tried, string][] = [
    ['5.1.1', reply(550, '5.1.1'), 'hard'],
    ['5.1.10', reply(556, '5.1.10'), 'hard'],
    ['5.2.1', reply(550, '5.2.1'), 'hard'],
    ['5.2.2', reply(552, '5.2.2'), 'soft'],
    ['5.2.3', reply(552, '5.2.3'), 'unknown'],
    ['5.3.4', reply(552, '5.3.4', 'mail'), 'soft'],
    ['5.4.6', reply(554, '5.4.6', 'end-of-data'), 'soft'],
    ['5.6.0', reply(554, '5.6.0', 'end-of-data'), 'unknown'],
    ['5.7.1', reply(554, '5.7.1', 'end-of-data'), 'policy'],
    ['5.7.26', reply(550, '5.7.26', 'data'), 'policy'],
    ['550 without an enhanced code', reply(550), 'unknown'],
    ['521 in the greeting', reply(521, null, 'greeting'), 'hard'],
    ['null MX', { kind: 'permanent', code: 'null_mx', reason: 'x' }, 'hard'],
    ['no such domain', { kind: 'permanent', code: 'no_such_domain', reason: 'x' }, 'hard'],
    ['MX records that name no host', { kind: 'permanent', code: 'no_mail_server', reason: 'x' }, 'soft'],
    ['hosts that do not exist', failure('no_such_host'), 'soft'],
    ['hosts at private addresses', failure('target_refused'), 'soft'],
    ['too large for the server', failure('message_too_large', 'mail'), 'soft'],
    ['no 8BITMIME', failure('needs_8bitmime', 'mail'), 'unknown'],
    ['no SMTPUTF8', failure('needs_smtputf8', 'mail'), 'unknown'],
  ];
  for (const [title, tried, type] of cases) {
    test(`${title}: ${type}`, () => {
      assert.deepEqual(outcomeOf(tried), { kind: 'bounced', type });
      assert.deepEqual(outcomeOf(tried, { tries: 99 }), { kind: 'bounced', type });
    });
  }
});

describe('deferred', () => {
  const cases: [string, Tried, Way][] = [
    ['451', reply(451, '4.7.1'), 'direct'],
    ['421', reply(421, null, 'mail'), 'direct'],
    ['452 at the end of data', reply(452, '4.2.2', 'end-of-data'), 'direct'],
    ['554 in the greeting', reply(554, '5.7.1', 'greeting'), 'direct'],
    ['550 at EHLO', reply(550, '5.7.1', 'ehlo'), 'direct'],
    ['535 at AUTH', reply(535, '5.7.8', 'auth'), 'relay'],
    ['521 of a relay', reply(521, null, 'greeting'), 'relay'],
    ['no connection', failure('connect_failed'), 'direct'],
    ['no TLS where it is required', failure('tls_required', 'tls'), 'direct'],
    [
      'no reply to the end of data',
      { ...failure('reply_timeout', 'end-of-data'), uncertain: true },
      'direct',
    ],
    ['the message could not be read', failure('message_unreadable', 'data'), 'direct'],
    ['stopped', failure('stopped', 'data'), 'direct'],
    ['the name of the relay does not exist', failure('no_such_host'), 'relay'],
    ['DNS did not answer', { kind: 'temporary', reason: 'x' }, 'direct'],
  ];
  for (const [title, tried, way] of cases) {
    test(`${title}, by ${way}`, () => {
      assert.deepEqual(outcomeOf(tried, { way }), { kind: 'deferred', waitSeconds: 60 });
      assert.deepEqual(outcomeOf(tried, { way, tries: 1 }), { kind: 'deferred', waitSeconds: 300 });
      assert.deepEqual(outcomeOf(tried, { way, tries: 2 }), { kind: 'expired', type: 'soft' });
    });
  }

  test('the standard schedule: 1, 5, 15, 30 min, 1, 2, 4, 8 h, then every 12 h until 4 days', () => {
    const half = 12 * 3600;
    const first = [60, 300, 900, 1800, 3600, 7200, 14_400, 28_800];
    assert.deepEqual(standardSchedule, [...first, half, half, half, half, half, half]);
    const total = standardSchedule.reduce((sum, wait) => sum + wait);
    assert.ok(total <= 4 * 86_400 && total + half > 4 * 86_400);
  });
});

describe('capture', () => {
  const signal = new AbortController().signal;

  test('takes everything', async () => {
    const taken = await captureMail('bob@example.com', { signal });
    assert.equal(taken.kind, 'accepted');
    assert.equal(taken.response?.code, 250);
  });

  test('bounce.test bounces, in any case', async () => {
    const { response } = await captureMail('bob@Bounce.TEST', { signal });
    assert.deepEqual([response?.code, response?.enhanced], [550, '5.1.1']);
  });

  test('defer.test is put off', async () => {
    const tried = await captureMail('bob@defer.test', { signal });
    assert.equal(outcomeOf(tried, { way: 'capture' }).kind, 'deferred');
  });

  test('slow.test takes its time', async () => {
    const order: string[] = [];
    const slow = captureMail('bob@slow.test', { signal, slowMs: 100 }).then(({ kind }) => order.push(kind));
    const fast = captureMail('bob@fast.test', { signal, slowMs: 100 }).then(() => order.push('fast'));
    await Promise.all([slow, fast]);
    assert.deepEqual(order, ['fast', 'accepted']);
  });

  test('a signal ends the wait of slow.test', async () => {
    const stop = new AbortController();
    const slow = captureMail('bob@slow.test', { signal: stop.signal, slowMs: 600_000 });
    stop.abort();
    const tried = await slow;
    assert.deepEqual([tried.kind, tried.error], ['failed', 'stopped']);
  });
});

describe('the URL of a relay', () => {
  const plain = { isImplicitTls: false, security: 'opportunistic', login: null };
  const login = { user: 'ada', password: 'secret' };
  const good: [string, object][] = [
    ['smtp://relay.example', { ...plain, host: 'relay.example', port: 25 }],
    ['smtp://RELAY:2525/', { ...plain, host: 'relay', port: 2525 }],
    ['smtp://[2001:db8::1]:25', { ...plain, host: '2001:db8::1', port: 25 }],
    [
      'smtp://ada:secret@relay.example:587',
      { host: 'relay.example', port: 587, isImplicitTls: false, security: 'verified', login },
    ],
    [
      'smtps://ada:secret@relay.example',
      { host: 'relay.example', port: 465, isImplicitTls: true, security: 'verified', login },
    ],
    ['smtp://ada:secret@127.0.0.1:25', { ...plain, host: '127.0.0.1', port: 25, login }],
    ['smtp://ada:secret@[::1]:25', { ...plain, host: '::1', port: 25, login }],
    ['smtp://ada:secret@localhost', { ...plain, host: 'localhost', port: 25, login }],
    [
      'smtp://ada%40example.com:p%2Fa%3As%25s@localhost',
      { ...plain, host: 'localhost', port: 25, login: { user: 'ada@example.com', password: 'p/a:s%s' } },
    ],
  ];
  for (const [url, server] of good) {
    test(url, () => assert.deepEqual(parseRelayUrl(url), server));
  }

  const bad: [string, RegExp][] = [
    ['relay.example:25', /must start with smtp/],
    ['https://relay.example', /must start with smtp/],
    ['smtp://', /host|must start/],
    ['smtp://ada@relay.example', /user and a password/],
    ['smtp://ada:sec%ret@relay.example', /%25/],
    ['smtp://ada:se%00cret@relay.example', /%/],
    ['smtp://relay.example/path', /after the host/],
    ['smtp://relay.example?tls=no', /after the host/],
    ['smtp://b%C3%BCcher.example', /xn--/],
  ];
  for (const [url, fault] of bad) {
    test(`not ${url}`, () => {
      const found = parseRelayUrl(url);
      assert.ok('fault' in found, JSON.stringify(found));
      assert.match(found.fault, fault);
      assert.ok(!/sec|cret/.test(found.fault));
    });
  }
});
