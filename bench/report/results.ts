/** The folder of what the last run found: `results.json`, `machine.md`, `chart.svg`; not kept in git. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { drawChart } from './chart.ts';
import { type Machine, tellMachine } from './machine.ts';
import { listMeasures, type Outcome } from './outcome.ts';

const root = path.resolve(import.meta.dirname, '../..');
const folder = path.join(root, 'bench/results');

export interface RunDescription {
  /** When it began. */
  date: string;
  commit: string;
  /** A profiler costs the service some of its speed: such a run is not to be held against others. */
  profiled: boolean;
  machine: Machine;
}

export function describeRun(machine: Machine, profiled: boolean): RunDescription {
  return { date: new Date().toISOString(), commit: readCommit(), profiled, machine };
}

/** Writes a file there and returns its path, from the root of the repository. */
export function saveResult(name: string, text: string): string {
  mkdirSync(folder, { recursive: true });
  writeFileSync(path.join(folder, name), text);
  return `bench/results/${name}`;
}

/** What an earlier run saved under that name. */
export function readResult(name: string): string | null {
  const file = path.join(folder, name);
  return existsSync(file) ? readFileSync(file, 'utf8') : null;
}

export function saveRun(
  run: RunDescription,
  outcomes: readonly Outcome[],
  failed: readonly string[],
  seconds: number,
): string[] {
  const { date, commit, machine } = run;
  const caption = `${date.slice(0, 10)}, ${commit.slice(0, 12)}, ${machine.cpu}, ${machine.cores} cores, PostgreSQL ${machine.postgres}${run.profiled ? ', profiled' : ''}`;
  const all = { ...run, seconds, failed, scenarios: outcomes };
  return [
    saveResult('results.json', `${JSON.stringify(all, null, 2)}\n`),
    saveResult('machine.md', `${describeInWords(run)}\n`),
    saveResult('chart.svg', drawChart(outcomes.flatMap(listMeasures), caption)),
  ];
}

function describeInWords({ date, commit, machine }: RunDescription): string {
  return `# What this ran on\n\n| | |\n|---|---|\n| Began | ${date} |\n| Commit | ${commit} |\n${tellMachine(machine)}`;
}

/** With a mark when the files differ from it. */
function readCommit(): string {
  const git = (...args: string[]) => spawnSync('git', args, { cwd: root, encoding: 'utf8' });
  const { status, stdout } = git('rev-parse', 'HEAD');
  if (status !== 0) return 'unknown';
  const changed = git('status', '--porcelain', '--untracked-files=no').stdout !== '';
  return stdout.trim() + (changed ? ' with changes' : '');
}
