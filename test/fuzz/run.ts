/**
 * `npm run test:fuzz -- [target …] [--minutes N | --seconds N] [--seed S] [--case N]`: sends random input to a real service and
 * checks what must be true for any input. One file for each target. Exit codes: 0 no failure, 1 a failure (saved in
 * test/fuzz/found/ with the command that repeats it), 2 wrong arguments.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { postgresPid } from '../programs.ts';
import { targets } from './targets.ts';
import { Watch } from './watch.ts';

const usualSeconds = 20;

let child: ChildProcess | undefined;
let isInterrupted = false;
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'disconnect'] as const) {
  process.on(signal, () => {
    isInterrupted = true;
    child?.kill('SIGKILL');
  });
}
process.channel?.unref();

const { names, seconds, seed, only } = readArguments();
for (const name of names) {
  if (isInterrupted || !(await fuzz(name))) process.exitCode = 1;
}

async function fuzz(name: string): Promise<boolean> {
  const tell = (line: string) => process.stderr.write(`${name}: ${line}\n`);
  const again = `npm run test:fuzz -- ${name} --seconds ${seconds} --seed ${seed}`;
  tell(only === undefined ? `${seconds} s, seed ${seed} (again with: ${again})` : `case ${only} of ${seed}`);
  const folder = mkdtempSync(path.join(tmpdir(), 'posthorn fuzz '));
  const run = new Watch(name, seed, tell);
  try {
    await run.untilItEnds(start(name, folder));
  } finally {
    killPostmaster(folder);
    rmSync(folder, { recursive: true, force: true });
  }
  run.tellProgress();
  tell(run.finds.size === 0 && !isInterrupted ? '✓ nothing was found' : `✗ see above; seed ${seed}`);
  return run.finds.size === 0 && !isInterrupted;
}

function start(name: string, dataDir: string): ChildProcess {
  const args = [name, String(seed), String(seconds), ...(only === undefined ? [] : [String(only)])];
  const env = { ...process.env, FUZZ_DATA_DIR: dataDir };
  child = fork(path.join(import.meta.dirname, 'child.ts'), args, { env });
  return child;
}

/** When the child was killed, its PostgreSQL still runs. */
function killPostmaster(dataDir: string): void {
  const pid = postgresPid(dataDir);
  try {
    if (pid) process.kill(pid, 'SIGKILL');
  } catch {
    // The process has ended and left its pid file.
  }
}

function readArguments() {
  try {
    const { values, positionals } = parseArgs({
      options: {
        minutes: { type: 'string' },
        seconds: { type: 'string' },
        seed: { type: 'string' },
        case: { type: 'string' },
        help: { type: 'boolean' },
      },
      allowPositionals: true,
    });
    const unknown = positionals.find((name) => !(name in targets));
    if (unknown) throw new Error(`There is no target ${unknown}.`);
    if (values.help) throw new Error('Random input for a real service.');
    const only = readNumber('--case', values.case);
    if (only !== undefined && (positionals.length !== 1 || !values.seed)) {
      throw new Error('--case goes with one target and --seed.');
    }
    const minutes = readNumber('--minutes', values.minutes);
    const seconds = readNumber('--seconds', values.seconds);
    return {
      names: positionals.length > 0 ? positionals : Object.keys(targets),
      seconds: seconds ?? (minutes === undefined ? usualSeconds : 60 * minutes),
      seed: readNumber('--seed', values.seed) ?? randomInt(1, 2 ** 31),
      only,
    };
  } catch (error) {
    const list = Object.entries(targets).map(([name, { about }]) => `  ${name}  ${about}`);
    process.stderr.write(
      `${(error as Error).message}\nnpm run test:fuzz -- [target …] [--minutes N | --seconds N] [--seed S] [--case N]\n${list.join('\n')}\n`,
    );
    process.exit(2);
  }
}

function readNumber(option: string, given: string | undefined): number | undefined {
  if (given === undefined) return undefined;
  if (/^\d{1,10}$/.test(given)) return Number(given);
  throw new Error(`${option} takes a whole number.`);
}
