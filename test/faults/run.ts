/**
 * `npm run test:faults -- [fault …] [--rounds N] [--seed S]`: breaks a real service on purpose and holds what is left against
 * what was promised. A file for each fault. Exit codes: 0 everything held, 1 something did not and the evidence is printed,
 * 2 not understood.
 */
import { randomInt } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { type Fault, type FaultRun, makeRandom } from './fault.ts';
import { kill } from './kill.ts';

const faults: Record<string, Fault> = { kill };
const shownViolations = 20;
const interruption = new Error('Interrupted.');
const interrupted = Promise.withResolvers<never>();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'disconnect'] as const) {
  process.on(signal, () => interrupted.reject(interruption));
}
interrupted.promise.catch(() => {});
process.channel?.unref();

const { names, rounds, seed } = readArguments();
for (const name of names) {
  if (!(await survive(name, faults[name] as Fault))) process.exitCode = 1;
}
// A run that was given up may still wait for something.
process.exit();

async function survive(name: string, fault: Fault): Promise<boolean> {
  const began = performance.now();
  const undoing: Parameters<FaultRun['defer']>[0][] = [];
  const tell = (line: string) => process.stderr.write(`${name}: ${line}\n`);
  const count = rounds ?? fault.usualRounds;
  tell(
    `${count} rounds, seed ${seed} (again with: npm run test:faults -- ${name} --rounds ${count} --seed ${seed})`,
  );
  let violations: string[];
  try {
    const work = fault.run({
      rounds: count,
      random: makeRandom(seed),
      tell,
      defer: (undo) => undoing.push(undo),
    });
    violations = await Promise.race([work, interrupted.promise, giveUpAfter(fault.boundMs(count))]);
  } catch (error) {
    violations = [error === interruption ? interruption.message : ((error as Error).stack ?? String(error))];
  }
  const held = violations.length === 0;
  const hasEvidence = !held && !violations.includes(interruption.message);
  for (const violation of violations.slice(0, shownViolations)) tell(`✗ ${violation}`);
  if (violations.length > shownViolations) tell(`✗ and ${violations.length - shownViolations} more`);
  for (const undo of undoing.reverse()) {
    await Promise.race([undo(!hasEvidence), giveUpAfter(30_000)]).catch((error) =>
      tell(`could not clean up: ${error.message}`),
    );
  }
  tell(
    `${held ? '✓ held' : `✗ did not hold, seed ${seed}`} (${Math.round((performance.now() - began) / 1000)} s)`,
  );
  return held;
}

async function giveUpAfter(ms: number): Promise<never> {
  await delay(ms, undefined, { ref: false });
  throw new Error(`It was not over after ${ms / 1000} seconds.`);
}

function readArguments() {
  try {
    const { values, positionals } = parseArgs({
      options: { rounds: { type: 'string' }, seed: { type: 'string' }, help: { type: 'boolean' } },
      allowPositionals: true,
    });
    const unknown = positionals.find((name) => !(name in faults));
    if (unknown) throw new Error(`There is no fault ${unknown}.`);
    if (values.help) throw new Error('Breaks a real service on purpose.');
    return {
      names: positionals.length > 0 ? positionals : Object.keys(faults),
      rounds: readNumber('--rounds', values.rounds),
      seed: readNumber('--seed', values.seed) ?? randomInt(1, 2 ** 31),
    };
  } catch (error) {
    const list = Object.entries(faults).map(([name, { about }]) => `  ${name}  ${about}`);
    process.stderr.write(
      `${(error as Error).message}\nnpm run test:faults -- [fault …] [--rounds N] [--seed S]\n${list.join('\n')}\n`,
    );
    process.exit(2);
  }
}

function readNumber(option: string, given: string | undefined): number | undefined {
  if (given === undefined || /^[1-9]\d{0,9}$/.test(given))
    return given === undefined ? undefined : Number(given);
  throw new Error(`${option} takes a whole number from 1 on.`);
}
