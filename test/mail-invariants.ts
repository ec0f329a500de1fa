/** What must be true for every message, whatever its bytes. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { extractAttachment, parseMessage } from '../src/mime/parse.ts';
import type { Report } from '../src/mime/reports.ts';

const keys =
  'attachments autoSubmitted bcc cc date from headers html inReplyTo messageId preview references replyTo report returnedIds sender subject text to truncated';

export async function checkMessage(raw: Uint8Array): Promise<void> {
  const before = Buffer.from(raw);
  const started = process.cpuUsage();
  const parsed = await parseMessage(raw);
  const { user } = process.cpuUsage(started);
  assert.ok(user < 5_000_000, `parsing took ${user} µs of the processor`);
  assert.deepEqual(await parseMessage(raw), parsed, 'another answer for the same bytes');
  assert.ok(before.equals(raw), 'the message was changed');

  assert.equal(Object.keys(parsed).sort().join(' '), keys);
  checkStrings(parsed);
  const { from, sender, to, cc, bcc, replyTo } = parsed;
  for (const entry of [from, sender, to, cc, bcc, replyTo].flat()) {
    if (entry) assert.match(entry.address ?? 'n@one', /.@./s);
    if (entry?.address === null) assert.ok(entry.name !== null);
    assert.notEqual(entry?.name, '');
  }
  const { messageId, inReplyTo, references, report, returnedIds } = parsed;
  const originalId = report?.original?.messageId ?? null;
  for (const id of [messageId, inReplyTo, ...references, ...returnedIds, originalId]) {
    if (id !== null) assert.match(id, /^<[^\s<>]+>$/);
  }
  if (originalId !== null) assert.equal(returnedIds.at(-1), originalId);
  if (report) checkReport(report);
  if (parsed.date !== null) assert.equal(new Date(parsed.date).toISOString(), parsed.date);
  assert.ok([...(parsed.preview ?? '')].length <= 200);
  assert.ok(!parsed.text?.includes('\r') && !parsed.html?.includes('\r'));
  for (const { name, value } of parsed.headers) {
    assert.match(name, /^[!-9;-~]+$/);
    assert.doesNotMatch(value, /[\r\n]/);
  }
  for (const [i, meta] of parsed.attachments.entries()) {
    assert.equal(meta.id, String(i));
    assert.doesNotMatch(meta.filename ?? 'none', /[/\\\p{Cc}]|^\.{0,2}$/u);
    const extracted = await extractAttachment(raw, i);
    assert.ok(extracted);
    assert.deepEqual(extracted.meta, meta);
    assert.equal(extracted.content.length, meta.size);
    assert.equal(createHash('sha256').update(extracted.content).digest('hex'), meta.sha256);
  }
  assert.equal(await extractAttachment(raw, parsed.attachments.length), null);
}

function checkReport({ original, recipients }: Report): void {
  if (original) assert.ok(original.messageId !== null || original.subject !== null);
  assert.ok(recipients.length <= 50);
  for (const { address, action, status } of recipients) {
    assert.match(address ?? 'n@one', /.@./s);
    assert.match(action ?? 'none', /^[a-z][a-z-]*$/);
    assert.match(status ?? '5.0.0', /^[245]\.\d{1,3}\.\d{1,3}$/);
  }
  const lines = recipients.flatMap(({ diagnostic, remoteMta }) => [diagnostic, remoteMta]);
  for (const line of [original?.subject, ...lines]) assert.match(line ?? 'none', /^[^\r\n]{1,1000}$/);
}

/** PostgreSQL refuses NULs and lone surrogates. */
export function checkStrings(value: unknown): void {
  if (typeof value === 'string')
    assert.ok(value.isWellFormed() && !value.includes('\0'), JSON.stringify(value));
  else if (value !== null && typeof value === 'object') Object.values(value).forEach(checkStrings);
}
