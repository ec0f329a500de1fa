/** The folder with the results of the last run: `results.json`, `machine.md`, `chart.svg`; not in git. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { drawChart } from './chart.ts';
import { formatMachine, type Machine } from './machine.ts';
import { listMeasures, type Outcome } from './outcome.ts';

const root = path.resolve(import.meta.dirname, '../..');
const folder = path.join(root, 'bench/results');

export interface RunDescription {
  /** When the run started. */
  date: string;
  commit: string;
  /** The profiler slows the service, so this run cannot be compared with others. */
  profiled: boolean;
  machine: Machine;
}

export function describeRun(machine: Machine, profiled: boolean): RunDescription {
  return { date: new Date().toISOString(), commit: readCommit(), profiled, machine };
}

/** Writes a file and returns its path, relative to the repository. */
export function saveResult(name: string, text: string): string {
  mkdirSync(folder, { recursive: true });
  writeFileSync(path.join(folder, name), text);
  return `bench/results/${name}`;
}

/** A file that an earlier run has saved. */
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
  return `# Machine\n\n| | |\n|---|---|\n| Started | ${date} |\n| Commit | ${commit} |\n${formatMachine(machine)}`;
}

/** With a note when files differ from the commit. */
function readCommit(): string {
  const git = (...args: string[]) => spawnSync('git', args, { cwd: root, encoding: 'utf8' });
  const { status, stdout } = git('rev-parse', 'HEAD');
  if (status !== 0) return 'unknown';
  const changed = git('status', '--porcelain', '--untracked-files=no').stdout !== '';
  return stdout.trim() + (changed ? ' with changes' : '');
}
