/** The loops of a process, by its roles, and how to wake them. */
import type { Config } from '../config.ts';
import { completeData } from '../contract/payload.ts';
import { isUnavailable } from '../db/client.ts';
import { listUnbuilt } from '../db/large-indexes.ts';
import type { Database } from '../db/open.ts';
import { startWaker } from '../db/wake.ts';
import type { ApiParts } from '../http/app.ts';
import { EventStreams } from '../http/event-streams.ts';
import { startVerification } from '../identities/verify.ts';
import { type Loop, startLoop } from '../lib/loop.ts';
import { type SyncTimes, startSync } from '../mailboxes/sync.ts';
import type { AcceptParts } from '../receiving/accept.ts';
import { acceptSynced } from '../receiving/accept-synced.ts';
import { MessageRecorder } from '../receiving/record.ts';
import { makeBounceAddress } from '../sending/bounce-address.ts';
import { standardSchedule } from '../sending/decide.ts';
import { startSending } from '../sending/send.ts';
import { Signer } from '../sending/signer.ts';
import { isChangingOver } from '../store/change-over.ts';
import type { StreamedEvent } from '../store/event-stream.ts';
import { runReplayBatch } from '../store/replays.ts';
import { startDelivery } from '../webhooks/deliver.ts';
import { Poster } from '../webhooks/post.ts';
import {
  startChangeOver,
  startIndexBuilding,
  startPurging,
  startReporting,
  startSettling,
} from './housekeeping.ts';
import type { Parts } from './parts.ts';
import { type WakeFor, wokenBySharedPoll } from './shared-poll.ts';
import { type Stops, stopLater } from './stops.ts';

const deliveryPoolSize = 5;
const sendingPoolSize = 4;
const syncPoolSize = 4;
const mailLockTimeoutMs = 250;
const replayPollMs = 1000;
export type OfferDeliveries = ReturnType<typeof startDelivery>['offer'];

export function makeRecorder(
  { acceptUnverified }: Config,
  database: Database,
  offerDeliveries: OfferDeliveries | null,
): MessageRecorder {
  // One connection: with two, PostgreSQL used a third more processor time, because the batches were half as large.
  const groupSql = database.openAnother('mail', { max: 1, lockTimeoutMs: mailLockTimeoutMs });
  return new MessageRecorder({ groupSql, acceptUnverified, offerDeliveries });
}

/** Delivery and sending are woken in every process, the purge and the settling in this one only. */
export type Wakes = Pick<ApiParts, 'wakeDelivery' | 'wakePurge' | 'wakeSettling'> & {
  wakeSending(): void;
  /** Call it after the commit of events. */
  wakeStreams(): void;
  /** `wakeDelivery` and `wakeStreams`. */
  wakeAfterEvents(): void;
};

export async function startLoops(
  parts: Parts,
  database: Database,
  stops: Stops,
): Promise<
  Wakes & {
    offerDeliveries: OfferDeliveries | null;
    streams: EventStreams | null;
    wakeFor: Omit<WakeFor, 'mailboxes'>;
  }
> {
  const { sql, log, verification, config } = parts;
  const purging = stopLater(stops, startPurging(parts));
  if (await isChangingOver(sql)) stopLater(stops, startChangeOver(parts));
  if ((await listUnbuilt(sql)).length > 0) {
    const own = database.openAnother('indexes', { max: 1, statementTimeoutMs: 0, lockTimeoutMs: 0 });
    stopLater(stops, startIndexBuilding(parts, own));
  }
  stopLater(stops, await startReporting(parts));
  const checks = config.roles.includes('verify')
    ? startVerification(verification, wokenBySharedPoll)
    : undefined;
  if (checks) stopLater(stops, checks);
  const delivering = config.roles.includes('deliver') ? startDelivering(parts, database, stops) : undefined;
  const waker = stopLater(stops, await startWaker(sql, log, 'deliveries', delivering?.wake ?? null));
  const streams = config.roles.includes('api') ? stopLater(stops, startStreams(parts)) : undefined;
  const streamWaker = stopLater(
    stops,
    await startWaker(sql, log, 'streams', streams ? () => streams.wake() : null),
  );
  const wakeAfterEvents = () => {
    waker.wake();
    streamWaker.wake();
  };
  const sending = config.roles.includes('send')
    ? stopLater(stops, startSendingMail(parts, database, wakeAfterEvents))
    : undefined;
  const sendWaker = stopLater(stops, await startWaker(sql, log, 'mail', sending?.wake ?? null));
  const settling = stopLater(stops, startSettling(parts, waker.wake));
  return {
    wakeFor: {
      ...{ checks: checks?.wake, settling: settling.wake, replays: delivering?.replays.wake },
      ...{ deliveries: delivering?.pollNow, mail: sending?.pollNow },
    },
    ...{
      wakeDelivery: waker.wake,
      wakeSending: sendWaker.wake,
      wakeStreams: streamWaker.wake,
      wakeAfterEvents,
    },
    streams: streams ?? null,
    ...{ wakePurge: purging.wake, wakeSettling: settling.wake },
    offerDeliveries: delivering?.offer ?? null,
  };
}

/** Delivery, and replays, which create deliveries. `wake` wakes both, or only delivery for new deliveries of known webhooks. */
function startDelivering(parts: Parts, database: Database, stops: Stops) {
  const { sealer, log, metrics, tracer, userAgent, links, config } = parts;
  const delivery = startDelivery({
    ...{ sealer, log, metrics, tracer, userAgent },
    sql: database.openAnother('delivery', { max: deliveryPoolSize }),
    // Not the API's poster: delivery closes its own when it stops.
    poster: new Poster({ egress: parts.egress }),
    ...wokenBySharedPoll,
    completeData: (stored) => completeData(stored, links, Date.now()),
    scheduleSeconds: config.retrySchedule,
  });
  stopLater(stops, delivery);
  const replays = stopLater(
    stops,
    startReplaying(parts, () => delivery.wake()),
  );
  const wake = (webhookIds?: readonly string[]) => {
    delivery.wake(webhookIds);
    if (!webhookIds) replays.wake();
  };
  return { wake, replays, pollNow: delivery.pollNow, offer: delivery.offer };
}

function startSendingMail(parts: Parts, database: Database, wakeAfterEvents: () => void) {
  const { sealer, log, metrics, ways, dns, mailWork, bounceKeys, confirmationLinks, config } = parts;
  const sql = database.openAnother('sending', { max: sendingPoolSize });
  return startSending({
    ...{ sql, ways, log, metrics, wakeAfterEvents, ...wokenBySharedPoll },
    signer: new Signer({ sql, sealer, dns, log, sign: mailWork.sign }),
    bounceAddress: (recipient) => makeBounceAddress(bounceKeys, recipient, config.bounceDomain, Date.now()),
    confirmations: { mailHost: config.mailHost, linkTo: confirmationLinks.to },
    scheduleSeconds: config.sendSchedule ?? standardSchedule,
  });
}

/** `wake` wakes the loop in every process, `pollNow` only in this one. With the `times` of a test the loop polls for itself. */
export async function startSyncing(
  parts: Parts,
  database: Database,
  mail: AcceptParts,
  stops: Stops,
  times: Partial<SyncTimes> | undefined,
): Promise<{ wake(): void; pollNow: (() => void) | undefined }> {
  const { log, metrics, config, verifyAccounts } = parts;
  const { maxMessageBytes } = config;
  const startLoop = () => {
    const sql = database.openAnother('sync', { max: syncPoolSize });
    const accounts = { ...verifyAccounts, sql };
    const recordMails: Parameters<typeof startSync>[0]['recordMails'] = (found, alsoWrite) =>
      acceptSynced({ ...mail, sql }, found, alsoWrite);
    const syncParts = { sql, log, metrics, accounts, maxMessageBytes, recordMails };
    return stopLater(
      stops,
      startSync({ ...syncParts, times, idleMs: times ? undefined : wokenBySharedPoll.idleMs }),
    );
  };
  const loop = config.roles.includes('sync') ? startLoop() : null;
  const { wake } = stopLater(stops, await startWaker(database.sql, log, 'mailboxes', loop?.wake ?? null));
  return { wake, pollNow: times ? undefined : loop?.wake };
}

function startStreams({ sql, log, links }: Parts): EventStreams {
  const writeBody = (event: StreamedEvent) => {
    const data = completeData(event, links, Date.now());
    // A line break in JSON is a blank, and in a stream the end of the field.
    return `{"event":${JSON.stringify(event.event)},"data":${data}}`.replaceAll(/[\r\n]/g, ' ');
  };
  return new EventStreams({ sql, log, writeBody });
}

function startReplaying({ sql, log }: Parts, wakeDelivery: () => void): Loop {
  const work = async () => {
    const step = await runReplayBatch(sql);
    if (step?.queued) wakeDelivery();
    return step !== undefined;
  };
  return startLoop({
    ...{
      name: 'replaying',
      pollMs: replayPollMs,
      ...wokenBySharedPoll,
      log,
      isTransient: isUnavailable,
      work,
    },
  });
}
