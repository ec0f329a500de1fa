/**
 * What a watcher of the event stream costs: 500 events a second, of 4 KB, to 20 watchers, against the same events without a watcher.
 * Processor time of the service for each event and watcher.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { connectBench } from '../database.ts';
import { sampleJson } from '../deliveries.ts';
import { startChild } from '../processes.ts';
import type { Bench, Figures, Taken } from '../scenario.ts';
import { startService } from '../service.ts';
import type { WatchQuestion } from '../stream-watchers.control.ts';
import { readCpuMs } from '../usage.ts';

export const name = 'stream';
export const goal: Figures = { eventAndWatcherUs: 15 };

const watchers = 20;
const perSecond = 500;
const batch = 10;
const usualEvents = 3000;
const rounds = 5;

export async function run(bench: Bench): Promise<Taken> {
  const service = await startService(bench);
  const sql = connectBench(bench, service.databaseUrl);
  const child = startChild(bench, new URL('../stream-watchers.control.ts', import.meta.url), []);
  const ask = (question: WatchQuestion) => child.ask(question);

  /** At an even pace, as other processes would announce them. */
  async function makeEvents(count: number): Promise<void> {
    const beganAt = performance.now();
    for (let made = 0; made < count; made += batch) {
      await sql`
        insert into events (id, owner_id, event, data, bytes)
        select gen_random_uuid(), ${service.ownerId}, 'message.received', ${sampleJson}::text::json, ${sampleJson.length}
        from generate_series(1, ${batch}::int)`;
      await sql`notify posthorn_events`;
      const dueAt = beganAt + ((made + batch) * 1000) / perSecond;
      await delay(Math.max(0, dueAt - performance.now()), undefined, { signal: bench.signal });
    }
  }

  async function measure(count: number, isWatched: boolean): Promise<number> {
    const { url, headers } = service;
    if (isWatched)
      await ask({
        ...{ kind: 'open', url: `${url}/events/stream`, authorization: headers.authorization },
        count: watchers,
      });
    const before = readCpuMs(service.pid);
    await makeEvents(count);
    if (isWatched) await ask({ kind: 'wait', events: count });
    const spent = readCpuMs(service.pid) - before;
    if (isWatched) await ask({ kind: 'close' });
    return spent;
  }

  const count = Math.max(batch, bench.size(usualEvents));
  bench.log('warming up');
  await measure(count, true);
  const taken: number[] = [];
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    const watched = await bench.measured(() => measure(count, true));
    const alone = await measure(count, false);
    taken.push(((watched - alone) * 1000) / (count * watchers));
    bench.log(`round ${round} of ${rounds}: ${taken.at(-1)?.toFixed(1)} µs for an event and watcher`);
  }
  return { eventAndWatcherUs: taken };
}
