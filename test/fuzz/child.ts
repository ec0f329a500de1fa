/**
 * Runs one target in its own process, so that a crash or a hang is noticed: `child.ts <target> <seed> <seconds> [case]`, started
 * by run.ts. Reports each case before it starts the case.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Random } from './random.ts';
import type { Case, Fuzzed, Report } from './target.ts';
import { againWith, foundFolder, targets } from './targets.ts';

const [name = '', seedText = '', secondsText = '', onlyText] = process.argv.slice(2);
const seed = Number(seedText);
const target = targets[name];
if (!target) throw new Error(`There is no target ${name}.`);
// The parent process has ended.
const giveUp = () => process.exit(1);
process.on('disconnect', giveUp);

const fuzzed = await target.open({ POSTHORN_DATA_DIR: process.env.FUZZ_DATA_DIR ?? '' });
tell({ kind: 'ready' });
const endsAt = performance.now() + 1000 * Number(secondsText);
let next = 0;
if (onlyText === undefined) await Promise.all(Array.from({ length: fuzzed.lanes }, () => work(fuzzed)));
else await runCase(fuzzed, Number(onlyText));
await fuzzed.close();
process.off('disconnect', giveUp);
process.disconnect?.();

async function work(fuzzed: Fuzzed): Promise<void> {
  while (performance.now() < endsAt) await runCase(fuzzed, next++);
}

async function runCase(fuzzed: Fuzzed, number: number): Promise<void> {
  const kept = new Map<string, string | Buffer>();
  const one: Case = {
    number,
    random: Random.ofCase(seed, number),
    keep: (file, content) => kept.set(file, content),
  };
  tell({ kind: 'begun', number });
  try {
    const outcomes = await Promise.race([fuzzed.run(one), giveUpLate()]);
    tell({ kind: 'ended', number, outcomes, memoryBytes: process.memoryUsage.rss() });
  } catch (error) {
    const what = (error as Error).stack ?? String(error);
    const folder = path.join(foundFolder, `${name}-${seed}-${number}`);
    mkdirSync(folder, { recursive: true });
    const again = againWith(name, seed, number);
    kept.set('what.txt', `${what}\n\nAgain with: ${again}\n`);
    for (const [file, content] of kept) writeFileSync(path.join(folder, file), content);
    tell({ kind: 'found', number, what, folder });
  }
}

/** Longer than the time limits of any case. */
async function giveUpLate(): Promise<never> {
  await delay(180_000, undefined, { ref: false });
  throw new Error('The case was not over after 180 s');
}

function tell(report: Report): void {
  process.send?.(report);
}
