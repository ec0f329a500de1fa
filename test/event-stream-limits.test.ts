/** What keeps an event stream open, and when a reader is cut. With limits of the test: no test waits for 15 s or reads 1 MB. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import path from 'node:path';
import { after, test } from 'node:test';
import { EventStreams, type Reader, type StreamLimits, standardLimits } from '../src/http/event-streams.ts';
import { findPosition, lowestId, readSnapshot } from '../src/store/event-stream.ts';
import { makeTestLog, startTestService, waitFor } from './harness.ts';
import { makeFolder } from './programs.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { sql } = service;
const { userId: ownerId } = service.user;
const [key] = await sql<{ id: string }[]>`select id from api_keys where owner_id = ${ownerId}`;

/** No limit is ever reached, but those that a test sets. The checks run often. */
const endless: StreamLimits = {
  perOwner: 20,
  maxWaitingBytes: Number.POSITIVE_INFINITY,
  stalledMs: Number.POSITIVE_INFINITY,
  commentMs: 1_000_000,
  keyCheckMs: 5,
};

/** The streams behind a socket of the file system: the system keeps little of what nobody reads there. */
async function startStreams(limits: Partial<StreamLimits>) {
  const streams = new EventStreams({
    ...{ sql, log: makeTestLog().log, limits: { ...endless, ...limits } },
    writeBody: ({ event, data }) => `{"event":"${event}","data":${data}}`,
  });
  const folder = makeFolder();
  const socketPath = path.join(folder.path, 'socket');
  const server = http.createServer();
  await once(server.listen(socketPath), 'listening');
  after(async () => {
    await streams.stop();
    server.closeAllConnections();
    server.close();
    folder.remove();
  });

  /** From now on, if no position is given. It reads nothing before `read`. */
  async function open(given: Partial<Reader> = {}) {
    const answered = once(http.get({ socketPath }), 'response');
    const [, sent] = (await once(server, 'request')) as [unknown, http.ServerResponse];
    const since = given.position ? null : await readSnapshot(sql);
    const reader = {
      ...{ ownerId, keyId: key?.id ?? '', sessionId: null, event: undefined, identityId: undefined },
      ...{ since, position: { xact: since?.xmin ?? 0n, id: lowestId }, response: sent },
    };
    sent.flushHeaders();
    assert.ok(streams.add({ ...reader, ...given }));
    const [response] = (await answered) as [http.IncomingMessage];
    response.on('error', () => {});
    let text = '';
    const read = () => response.setEncoding('utf8').on('data', (chunk) => (text += chunk));
    return {
      read,
      text: () => text,
      // What was cut off in the middle of an event is no event: a client resumes after the last whole one.
      ids: () => [...text.matchAll(/^id: (.*)\n.*\n.*\n\n/gm)].map(([, id = '']) => id),
      isCut: () => sent.destroyed,
      hasEnded: () => response.destroyed,
    };
  }

  async function make(size: number, event = 'message.received'): Promise<string> {
    const data = JSON.stringify({ text: 'x'.repeat(size) });
    const id = await service.makeEvent({ ownerId, event, data });
    streams.wake();
    return id;
  }
  return { open, make };
}

test('the limits are those that are documented', () => {
  const { perOwner, maxWaitingBytes, stalledMs, commentMs, keyCheckMs } = standardLimits;
  assert.deepEqual([perOwner, maxWaitingBytes, stalledMs, commentMs], [20, 1024 * 1024, 30_000, 15_000]);
  // A revoked key ends its streams within 5 s.
  assert.ok(keyCheckMs < 5000);
});

test('comments keep a stream open on which nothing happens', async () => {
  const { open } = await startStreams({ commentMs: 1 });
  const reader = await open();
  reader.read();
  await waitFor('three comments', () => reader.text().split(': still here\n\n').length > 3);
  assert.equal(reader.isCut(), false);
});

test('a reader that has too much unread is cut, and resumes without a gap', async () => {
  const { open, make } = await startStreams({ maxWaitingBytes: 1000 });
  const slow = await open();
  const made: string[] = [];
  for (let n = 0; n < 30; n += 1) made.push(await make(100_000));
  await waitFor('the cut', slow.isCut);
  slow.read();
  await waitFor('what was on its way', slow.hasEnded);
  const got = slow.ids();
  assert.ok(got.length < made.length);
  const position = await findPosition(sql, ownerId, got.at(-1) ?? '');
  assert.ok(position);
  const resumed = await open({ position });
  resumed.read();
  await waitFor('the other events', () => resumed.ids().length >= made.length - got.length);
  assert.deepEqual([...got, ...resumed.ids()], made);
  assert.equal(resumed.isCut(), false);
});

test('an event that is larger than what may wait is written whole', async () => {
  const { open, make } = await startStreams({ maxWaitingBytes: 1000 });
  const reader = await open();
  reader.read();
  const id = await make(2_000_000);
  await waitFor('the event, or a cut', () => reader.ids().length > 0 || reader.isCut());
  assert.deepEqual([reader.ids(), reader.isCut()], [[id], false]);
});

test('a reader that makes no progress is cut; a reader that has nothing to read is not', async () => {
  const { open, make } = await startStreams({ stalledMs: 20 });
  const stalled = await open({ event: 'message.received' });
  const idle = await open({ event: 'message.bounced' });
  await make(2_000_000);
  await waitFor('the cut', stalled.isCut);
  assert.equal(idle.isCut(), false);
});
