/**
 * `npm run bench -- search`: the time of `GET /messages?q=` among a million messages of one owner, spread over 30 days, for words that
 * many, few or no messages have. Needs about 10 GB of disk.
 */
import type { Pool } from '../../src/db/client.ts';
import { largeIndexes } from '../../src/db/large-indexes.ts';
import { wordKey } from '../../src/store/words.ts';
import { connectBench } from '../database.ts';
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { round } from '../report/outcome.ts';
import { type Bench, type Finding, quantile } from '../scenario.ts';
import { type BenchedService, startService } from '../service.ts';

export const name = 'search';

const goalMs = 50;
const usualMessages = 1_000_000;
const usualBatch = 50_000;
const days = 30;
const requests = 60;

/** Which messages have a word, by their number: the newest is 0. */
const words: Record<string, string> = {
  invoice: 'true',
  half: 'n % 2 = 0',
  otherhalf: 'n % 2 = 1',
  hundredth: 'n % 100 = 0',
  rare: 'n % 250000 = 3',
  older: 'n > 500000',
};

const searches: Record<string, string> = {
  'a word of all messages': 'invoice',
  'a word of half of them': 'half',
  'a word of one in 100': 'hundredth',
  'a word of one in 250,000': 'rare',
  'a word of the older half': 'older',
  'two words that are never together': 'half otherhalf',
  'a frequent and a rare word': 'invoice rare',
  'a word of no message': 'none',
};

export async function run(bench: Bench): Promise<Finding> {
  const tools = await startMailTools(bench);
  const service = await startService(bench, mailSettings(tools));
  const sql = connectBench(bench, service.databaseUrl);
  await makeIdentity(service);
  await tools.pace(service.smtpPort, { perSecond: 1, count: 1 });
  await fill(bench, sql, service.ownerId);

  const found: { search: string; p50Ms: number; p95Ms: number }[] = [];
  for (const [search, q] of Object.entries(searches)) {
    const times: number[] = [];
    for (let n = 0; n < bench.size(requests); n += 1) times.push(await time(service, q));
    const [p50Ms, p95Ms] = [quantile(times, 0.5), quantile(times, 0.95)];
    bench.log(`${search}: p50 ${p50Ms.toFixed(1)} ms, p95 ${p95Ms.toFixed(1)} ms`);
    found.push({ search, p50Ms: round(p50Ms, 1), p95Ms: round(p95Ms, 1) });
  }
  const rows = found.map(({ search, p50Ms, p95Ms }) => [search, `${p50Ms} ms`, `${p95Ms} ms`]);
  return {
    value: { messages: bench.size(usualMessages), goalMs, searches: found },
    rows: [['search', 'p50', 'p95'], ...rows],
    files: {},
    met: found.every(({ p95Ms }) => p95Ms <= goalMs),
  };
}

/** Copies of the owner's only message. Each also has words of its own, as mail has. */
async function fill(bench: Bench, sql: Pool, ownerId: string): Promise<void> {
  const [messages, batch] = [bench.size(usualMessages), bench.size(usualBatch)];
  const spacingSeconds = (days * 86_400) / messages;
  const keys = Object.entries(words).map(
    ([word, isIn]) => `case when ${isIn} then ${wordKey(ownerId, word)}::bigint end`,
  );
  const ownKeys = [1, 100_000, 5000, 3000, 20].map((kinds, at) =>
    kinds === 1 ? `hashint8extended(n, ${at})` : `hashint8extended(n % ${kinds}, ${at})`,
  );
  const index = largeIndexes.find(({ name }) => name === 'messages_by_words');
  if (!index) throw new Error('The index of words has another name');
  // Built afterwards, in one go: that takes a tenth of the time.
  await sql.script(`set statement_timeout = 0; drop index ${index.name}`);
  for (let made = 0; made < messages; made += batch) {
    await sql.script(`
      set statement_timeout = 0;
      insert into messages (id, owner_id, identity_id, size, sha256, thread_id, summary, content, message_key, repeat_key, received_on,
        created_at, words)
      select gen_random_uuid(), owner_id, identity_id, size, sha256, gen_random_uuid(), summary, content, gen_random_uuid(),
        gen_random_uuid(), moment::date, moment, array_remove(array[${[...keys, ...ownKeys].join(', ')}], null)
      from (select * from messages order by created_at desc limit 1) one,
        (select n, now() - n * interval '${spacingSeconds} seconds' as moment
          from generate_series(${made}, ${made + batch - 1}) n) numbers`);
    bench.log(`${(made + batch).toLocaleString('en')} of ${messages.toLocaleString('en')} messages`);
  }
  bench.log('building the index');
  await sql.script(`set statement_timeout = 0; create index ${index.name} on ${index.on}`);
  await sql`vacuum analyze messages`;
}

async function time({ url, headers: { authorization } }: BenchedService, q: string): Promise<number> {
  const began = performance.now();
  const answer = await fetch(`${url}/messages?q=${encodeURIComponent(q)}`, { headers: { authorization } });
  await answer.text();
  if (answer.status !== 200) throw new Error(`GET /messages responded ${answer.status}`);
  return performance.now() - began;
}
