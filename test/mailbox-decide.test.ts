/** Where reading starts, which mail is new, and when to try again. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  backoffSeconds,
  chooseMessage,
  fingerprintOf,
  keepsSentMail,
  type MessageFacts,
  readInternalDate,
  startPosition,
} from '../src/mailboxes/decide.ts';
import { OpenRate } from '../src/mailboxes/open-rate.ts';
import type { Position } from '../src/store/mailbox-sync.ts';

const position: Position = {
  ...{ mailboxId: 'm', kind: 'inbox', path: 'INBOX', scan: 0 },
  ...{ uidValidity: 7, nextUid: 10, older: null },
};
const folder = { uidValidity: 7, uidNext: 12, total: 5 };

describe('where reading starts', () => {
  test('at first at the end of the folder: mail that is already there counts as older mail', () => {
    const first = startPosition({ ...position, uidValidity: null, nextUid: 1 }, folder, 0);
    assert.deepEqual(first, { uidValidity: 7, nextUid: 12, older: { uid: 1, end: 12 }, scan: 0 });
  });

  test('afterwards where it ended', () => {
    assert.equal(startPosition(position, folder, 0), null);
    assert.equal(startPosition({ ...position, older: { uid: 3, end: 9 } }, folder, 0), null);
  });

  test('again at the beginning after another UIDVALIDITY, or a UIDNEXT that went back', () => {
    const rebuilt = startPosition(position, { ...folder, uidValidity: 8 }, 0);
    assert.deepEqual(rebuilt, { uidValidity: 8, nextUid: 12, older: { uid: 1, end: 12 }, scan: 0 });
    const restored = startPosition(position, { ...folder, uidNext: 4 }, 0);
    assert.deepEqual(restored, { ...first(4), older: { uid: 1, end: 4 } });
    const emptied = startPosition(position, { ...folder, uidNext: 1 }, 0);
    assert.deepEqual(emptied, { ...first(1), older: null });
  });

  test('a server that does not tell its UIDNEXT: all mail counts as new, once', () => {
    const silent = { ...folder, uidNext: null };
    const start = startPosition({ ...position, uidValidity: null, nextUid: 1 }, silent, 0);
    assert.deepEqual(start, { ...first(1), older: null });
    assert.equal(startPosition(position, silent, 0), null);
  });

  test('an empty folder has no older mail', () => {
    assert.equal(startPosition(position, { ...folder, uidValidity: 8, uidNext: 1 }, 0)?.older, null);
  });

  test('older mail is read at a request, and only once for it', () => {
    const asked = startPosition(position, folder, 1);
    assert.deepEqual(asked, { ...first(10), older: { uid: 1, end: 10 }, scan: 1 });
    assert.equal(startPosition({ ...position, scan: 1 }, folder, 1), null);
  });

  const first = (nextUid: number) => ({ uidValidity: 7, nextUid, scan: 0 });
});

const day = (text: string) => new Date(`${text}T00:00:00Z`);
const rules = { importSince: day('2026-01-01'), eventsSince: day('2026-03-01') };
const unknown = { isKnown: false, isOwnCopy: false, isNew: false };

test('a message is recorded if it is unknown and not older than was asked for', () => {
  const choose = (receivedAt: string, more = {}, size = 10) =>
    chooseMessage({ receivedAt: day(receivedAt), size }, { ...unknown, ...more }, rules, 100);
  assert.deepEqual(choose('2026-03-01'), { kind: 'record', hasEvent: true });
  assert.deepEqual(choose('2026-02-28'), { kind: 'record', hasEvent: false });
  assert.deepEqual(choose('2025-12-31'), { kind: 'skip', why: 'old' });
  assert.deepEqual(choose('2026-03-01', { isKnown: true }), { kind: 'skip', why: 'known' });
  assert.deepEqual(choose('2026-03-01', { isOwnCopy: true }), { kind: 'own_copy' });
  assert.deepEqual(choose('2026-03-01', {}, 101), { kind: 'skip', why: 'too_large' });
});

test('a message whose date cannot be read is recorded: with an event if its UID is new', () => {
  for (const given of [undefined, '', 'never', '32-Foo-2026 25:00:00 +0000', new Date(Number.NaN)])
    assert.equal(readInternalDate(given), null);
  assert.deepEqual(readInternalDate(day('2026-03-01')), day('2026-03-01'));
  const choose = (isNew: boolean) =>
    chooseMessage({ receivedAt: null, size: 1 }, { ...unknown, isNew }, rules, 100);
  assert.deepEqual([true, false].map(choose), [
    { kind: 'record', hasEvent: true },
    { kind: 'record', hasEvent: false },
  ]);
  const facts = { uid: 1, receivedAt: null, size: 5, header: Buffer.from('A: b\r\n\r\n') };
  assert.equal(fingerprintOf(facts), fingerprintOf({ ...facts, uid: 2 }));
});

test('the fingerprint has the date, the size and every byte of the header', () => {
  const facts: MessageFacts = {
    uid: 1,
    receivedAt: day('2026-01-01'),
    size: 5,
    header: Buffer.from('A: b\r\n\r\n'),
  };
  const same = fingerprintOf(facts);
  assert.equal(fingerprintOf({ ...facts, uid: 2 }), same);
  const others = [
    { receivedAt: day('2026-01-02') },
    { size: 6 },
    { header: Buffer.from('A: c\r\n\r\n') },
    { header: Buffer.from('A: b\r\n') },
  ];
  for (const other of others) assert.notEqual(fingerprintOf({ ...facts, ...other }), same);
});

test('the next try comes later each time, up to 15 minutes, and half of the time is random', () => {
  assert.equal(backoffSeconds(0, 1, false), 5);
  assert.equal(backoffSeconds(1, 1, false), 10);
  assert.equal(backoffSeconds(1, 0, false), 5);
  assert.equal(backoffSeconds(50, 1, false), 900);
  assert.equal(backoffSeconds(50, 0, false), 450);
  assert.equal(backoffSeconds(1, 1, true), 10);
  assert.equal(backoffSeconds(50, 1, true), 60);
});

test('the number of connections that are opened in a second is limited', () => {
  const rate = new OpenRate(20);
  assert.equal(rate.available(1000), 20);
  rate.take(20);
  assert.equal(rate.available(1000), 0);
  assert.equal(rate.available(1500), 10);
  rate.take(4);
  assert.equal(rate.available(1500), 6);
  assert.equal(rate.available(60_000), 20);
});

test('which servers put sent mail into the Sent folder by themselves', () => {
  for (const host of ['outlook.office365.com', 'imap-mail.outlook.com', 'partner.outlook.cn', 'outlook.com'])
    assert.equal(keepsSentMail(host, false), true, host);
  for (const host of ['imap.fastmail.com', 'outlook.com.example.net', 'myoutlook.com', '127.0.0.1'])
    assert.equal(keepsSentMail(host, false), false, host);
  assert.equal(keepsSentMail('imap.company.example', true), true, 'Google Workspace under another name');
});
