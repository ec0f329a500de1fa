/**
 * The role `sync`: holds a connection to the mailbox of each identity that has one elsewhere, as far as no other process does.
 * Guarantees: connections are opened at most at a fixed rate; one that lost its lease, or whose identity or account was changed or
 * deleted, is closed at the next check, for which a change wakes the loop.
 */
import { isUnavailable, type Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { type Loop, startLoop } from '../lib/loop.ts';
import type { Metrics } from '../lib/metrics.ts';
import { SharedMemory } from '../lib/shared-memory.ts';
import {
  type ClaimedConnection,
  claimConnections,
  listLeased,
  noteConnected,
  releaseAll,
  releaseConnection,
  renewLeases,
} from '../store/imap-connections.ts';
import { MailboxGone, PositionLost } from '../store/mailbox-sync.ts';
import { recordReceiveState } from '../store/smtp-accounts.ts';
import { MailboxConnection } from './connection.ts';
import { backoffSeconds } from './decide.ts';
import { ServerFailure, ThreadFailure } from './imap-failure.ts';
import type { LoginParts } from './login.ts';
import { OpenRate } from './open-rate.ts';
import type { RecordMails } from './read-folder.ts';

export interface SyncParts {
  sql: Sql;
  log: Log;
  metrics: Pick<Metrics, 'syncConnections' | 'syncFailures'>;
  maxMessageBytes: number;
  recordMails: RecordMails;
  accounts: LoginParts;
  times?: Partial<SyncTimes> | undefined;
  /** Instead of `pollMs` while no connection is open: for a caller that polls, and wakes the loop. */
  idleMs?: number | undefined;
}

export type SyncTimes = typeof usualTimes;

const usualTimes = {
  /** How often sent and spam are checked, and the inbox of a server without IDLE. */
  checkMs: 60_000,
  /** How often the database is asked for changes that nobody announced. */
  pollMs: 1000,
  renewMs: 8000,
  /** An answer that takes longer is cut when others need its memory. */
  slowMs: 30_000,
  emptyReadMs: 1000,
};
/** A search in a large mailbox may take a minute. */
const timeouts = { connectMs: 10_000, greetingMs: 15_000, silenceMs: 120_000, loginMs: 120_000 };
const opensPerSecond = 20;
/** Memory for what servers answer, until it is recorded: in total, and for each owner. */
const memoryBytes = { inAll: 128 * 1024 * 1024, perOwner: 64 * 1024 * 1024 };

export function startSync(parts: SyncParts): Loop {
  const { sql, log, metrics, maxMessageBytes } = parts;
  const imap = { ...parts.accounts.imap, maxMessageBytes, timeouts };
  const accounts = { ...parts.accounts, imap };
  const { checkMs, pollMs, renewMs, slowMs, emptyReadMs } = { ...usualTimes, ...parts.times };
  const connections = new Map<string, MailboxConnection>();
  const memory = new SharedMemory({ ...memoryBytes, slowMs }, tooSlow);
  const rate = new OpenRate(opensPerSecond);
  const endings = new Set<Promise<void>>();
  let renewedAt = performance.now();
  /** The owner of the connection that was claimed last. The next claim starts with the owner after this one. */
  let lastOwner: string | undefined;

  function open(claimed: ClaimedConnection): void {
    const { identityId } = claimed;
    let checks = 0;
    const connection = new MailboxConnection(
      {
        ...{ sql, log, memory, checkMs, emptyReadMs, maxMessageBytes },
        ...{ accounts, recordMails: parts.recordMails },
        onRead: () => {
          checks += 1;
          // A server may end each connection after the first check, and must not be called every few seconds for ever.
          return noteRead(claimed, checks > 1);
        },
        onEnd: (error) => track(end(claimed, connection, error, checks > 0)),
      },
      claimed,
    );
    connections.set(identityId, connection);
    metrics.syncConnections.set(connections.size);
  }

  function track(ending: Promise<void>): void {
    const tracked = ending
      .catch((err: unknown) =>
        log.error({ err }, 'a mailbox connection could not be given back; its lease expires'),
      )
      .finally(() => endings.delete(tracked));
    endings.add(tracked);
  }

  async function noteRead(claimed: ClaimedConnection, isLasting: boolean): Promise<void> {
    const { ownerId, accountId, version } = claimed;
    // The connection lasts: the backoff starts anew at the next failure.
    if (isLasting) claimed.failures = 0;
    await noteConnected(sql, claimed, isLasting);
    await recordReceiveState(sql, ownerId, accountId, 'ok', null, version);
  }

  async function end(
    claimed: ClaimedConnection,
    connection: MailboxConnection,
    cause: unknown,
    wasRead: boolean,
  ): Promise<void> {
    await forget(connection);
    const { identityId, ownerId, accountId, version, failures } = claimed;
    // Nothing failed. After `PositionLost` another process has read on, and its position counts.
    if (cause instanceof PositionLost || cause instanceof MailboxGone)
      return releaseConnection(sql, claimed, null);
    // The server of another connection broke the thread.
    if (cause instanceof ThreadFailure && !cause.wasBusy) return releaseConnection(sql, claimed, null);
    const retrySeconds = backoffSeconds(failures, Math.random(), wasRead);
    if (!(cause instanceof ServerFailure)) {
      metrics.syncFailures.inc({ code: 'internal' });
      log.error({ identityId, err: cause }, 'reading a mailbox failed for a reason of our own');
      const unshown = { error: null, isLoginRefused: false, retrySeconds };
      return releaseConnection(sql, claimed, unshown);
    }
    const { error } = cause;
    const isLoginRefused = error.code === 'authentication_failed';
    metrics.syncFailures.inc({ code: error.code });
    const { code, message: advice, response } = error;
    log.warn({ identityId, code, advice, response }, 'a mailbox cannot be read');
    // Before the release: another process may claim the connection then, and its state is the newer one.
    await recordReceiveState(sql, ownerId, accountId, 'failing', error, version);
    await releaseConnection(sql, claimed, { error, isLoginRefused, retrySeconds });
  }

  async function forget(connection: MailboxConnection): Promise<void> {
    if (connections.get(connection.identityId) === connection) connections.delete(connection.identityId);
    metrics.syncConnections.set(connections.size);
    await connection.close();
  }

  function listOpenTokens(): string[] {
    return [...new Set([...connections.values()].map(({ token }) => token))];
  }

  async function work(): Promise<boolean | number> {
    if (performance.now() - renewedAt >= renewMs) {
      await renewLeases(sql, [...connections.values()]);
      renewedAt = performance.now();
    }
    const leased = new Map((await listLeased(sql, listOpenTokens())).map((one) => [one.identityId, one]));
    for (const connection of [...connections.values()]) {
      const found = leased.get(connection.identityId);
      if (found?.token === connection.token) connection.note(found);
      else track(forget(connection).then(() => releaseConnection(sql, connection, null)));
    }
    const claimed = await claimConnections(sql, newId(), rate.available(performance.now()), lastOwner);
    rate.take(claimed.length);
    lastOwner = claimed.at(-1)?.ownerId ?? lastOwner;
    for (const one of claimed) {
      // The lease of the open connection expired since the leases were listed.
      const expired = connections.get(one.identityId);
      if (expired) track(forget(expired));
      open(one);
    }
    return connections.size > 0 && pollMs;
  }

  const loop = startLoop({
    ...{ name: 'synchronising mailboxes', pollMs, idleMs: parts.idleMs ?? pollMs },
    ...{ log, isTransient: isUnavailable, work },
  });
  return {
    wake: loop.wake,
    async stop() {
      await loop.stop();
      const tokens = listOpenTokens();
      await Promise.all([...connections.values()].map(forget));
      await Promise.all(endings);
      // The leases expire by themselves, so a stop does not wait for a database that is unavailable.
      await releaseAll(sql, tokens).catch(() => {});
    },
  };
}

function tooSlow(): Error {
  return new Error('The server sent slowly what others had to wait for');
}
