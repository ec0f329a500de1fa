/** The loops that keep the database in order, in every process: purging, settling webhooks, what an upgrade left to do, reporting. */
import { setTimeout as pause } from 'node:timers/promises';
import { errorCode, isUnavailable, type Pool } from '../db/client.ts';
import { buildIndex, listUnbuilt } from '../db/large-indexes.ts';
import { newId } from '../lib/ids.ts';
import { type Loop, startLoop } from '../lib/loop.ts';
import { readVersion } from '../lib/version.ts';
import { changeOverBatch, isChangingOver } from '../store/change-over.ts';
import { isPurgeDue } from '../store/due-work.ts';
import { settleWebhooks } from '../store/held.ts';
import { purgeResponses } from '../store/idempotency.ts';
import { nameOfThisProcess, removeProcess, reportProcess } from '../store/processes.ts';
import { purgeDeletedIdentities, purgeDeletedWebhooks, purgeExpired, purgeOld } from '../store/purge.ts';
import type { Parts } from './parts.ts';
import { wokenBySharedPoll } from './shared-poll.ts';

const purgePollMs = 10_000;
const purgeBatch = 500;
const reportPollMs = 10_000;
const settlePollMs = 2000;
const indexPollMs = 5000;
/** Each try may read a large table, and a full disk stays full for a while. */
const indexRetryMs = 5 * 60_000;
/** insufficient_privilege */
const insufficientPrivilege = '42501';

/** Holds the deliveries of webhooks that were disabled, and resumes those of webhooks that were enabled. */
export function startSettling({ sql, log }: Parts, wakeDelivery: () => void): Loop {
  const work = async () => {
    const { webhooks, resumed } = await settleWebhooks(sql);
    if (resumed > 0) wakeDelivery();
    return webhooks > 0;
  };
  return startLoop({
    name: 'settling webhooks',
    pollMs: settlePollMs,
    ...wokenBySharedPoll,
    restFactor: 1,
    log,
    isTransient: isUnavailable,
    work,
  });
}

export function startPurging({ sql, log, metrics, config: { retentionDays } }: Parts): Loop {
  const onCancelled: Parameters<typeof purgeOld>[3] = (deliveries) => {
    metrics.ended.inc({ outcome: 'cancelled' }, deliveries.length);
    for (const delivery of deliveries) log.info(delivery, 'delivery cancelled: the retention has ended');
  };
  const work = async () => {
    if (!(await isPurgeDue(sql, retentionDays))) return false;
    const more = [
      await purgeResponses(sql),
      await purgeDeletedWebhooks(sql),
      await purgeDeletedIdentities(sql),
      await purgeOld(sql, retentionDays, purgeBatch, onCancelled),
      await purgeExpired(sql, retentionDays),
    ];
    return more.includes(true);
  };
  return startLoop({
    name: 'purging',
    pollMs: purgePollMs,
    restFactor: 4,
    log,
    isTransient: isUnavailable,
    work,
  });
}

/** Changes what older versions stored. Works half of the time, so that the rest of the service is hardly slowed down. */
export function startChangeOver({ sql, log }: Parts): Loop {
  log.info('changing stored messages to the new form, in the background');
  let announced = 0;
  let isDone = false;
  const work = async () => {
    if (isDone) return false;
    const changed = await changeOverBatch(sql);
    if (changed === null) {
      isDone = !(await isChangingOver(sql));
      if (isDone) log.info('all stored messages have the new form');
      return false;
    }
    if (changed >= announced + 10_000) {
      log.info({ changed }, 'changing stored messages');
      announced = changed;
    }
    return true;
  };
  return startLoop({
    name: 'changing stored messages',
    pollMs: purgePollMs,
    restFactor: 1,
    log,
    isTransient: isUnavailable,
    work,
  });
}

/** Builds the indexes that a migration left out. `own`: as for `buildIndex`. A stop closes it and waits for no index. */
export function startIndexBuilding({ log }: Parts, own: Pool): Pick<Loop, 'stop'> {
  log.info('building indexes, in the background: some lists are slower until then');
  let isDone = false;
  let isStopping = false;
  let tries = 0;
  const work = async () => {
    if (isDone) return false;
    const unbuilt = await listUnbuilt(own);
    // In turn: an index that cannot be built must not keep the others waiting.
    const next = unbuilt[tries % Math.max(1, unbuilt.length)];
    tries += 1;
    if (!next) {
      isDone = true;
      log.info('all indexes are built');
      return false;
    }
    if ((await buildIndex(own, next)) === 'by another') return false;
    log.info({ index: next.name }, 'index built');
    return true;
  };
  const loop = startLoop({
    ...{ name: 'building indexes', pollMs: indexPollMs, maxRetryMs: indexRetryMs },
    ...{ log, isTransient: isUnavailable },
    work: () =>
      work().catch((error) => {
        // The stop has closed the pool.
        if (isStopping) return false;
        if (errorCode(error) !== insufficientPrivilege) throw error;
        isDone = true;
        log.error(
          'the role of DATABASE_URL may not create indexes, so some lists stay slow: start the service once with the role that owns the tables',
        );
        return false;
      }),
  });
  return {
    async stop() {
      isStopping = true;
      await Promise.all([loop.stop(), own.end({ timeoutMs: 0 })]);
    },
  };
}

/** Tells other processes and commands that this process runs, and which keys it has. */
export async function startReporting({ sql, log, sealer, config }: Parts): Promise<Pick<Loop, 'stop'>> {
  const self = {
    ...{ id: newId(), name: nameOfThisProcess(), roles: config.roles },
    ...{ version: readVersion(), keyIds: sealer.keyIds },
  };
  await reportProcess(sql, self);
  const loop = startLoop({
    ...{ name: 'reporting this process', pollMs: reportPollMs, log, isTransient: isUnavailable },
    async work() {
      await reportProcess(sql, self);
      return false;
    },
  });
  return {
    async stop() {
      await loop.stop();
      // The row would expire by itself, so a stop does not wait for a database that is unavailable.
      await Promise.race([
        removeProcess(sql, self.id).catch(() => {}),
        pause(1000, undefined, { ref: false }),
      ]);
    },
  };
}
