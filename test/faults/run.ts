/**
 * `npm run test:faults -- [fault …] [--short] [--rounds N] [--messages N] [--seed S]`: breaks a real service on purpose and checks that its
 * guarantees hold. One file for each fault. Exit codes: 0 everything held, 1 a violation (printed with its evidence), 2 wrong
 * arguments.
 */
import { randomInt } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { table as formatTable } from '../../src/lib/table.ts';
import { clockOff } from './clock.ts';
import { databaseKill, databaseStop } from './database.ts';
import { diskFull } from './disk-full.ts';
import { failover } from './failover.ts';
import { type Fault, type FaultRun, makeRandom, type Outcome } from './fault.ts';
import { imapKill } from './imap-kill.ts';
import { kill } from './kill.ts';
import { killOneOfThree } from './kill-one-of-three.ts';
import { mime } from './mime.ts';
import { receiver } from './receiver.ts';
import { sendDatabase } from './send-database.ts';
import { sendKill } from './send-kill.ts';
import { sendRelay } from './send-relay.ts';
import { smtp } from './smtp.ts';
import { upgrade } from './upgrade.ts';

const faults: Record<string, Fault> = {
  kill,
  'kill-one-of-three': killOneOfThree,
  'database-stop': databaseStop,
  'database-kill': databaseKill,
  failover,
  receiver,
  'disk-full': diskFull,
  clock: clockOff,
  smtp,
  mime,
  upgrade,
  'send-kill': sendKill,
  'send-relay': sendRelay,
  'send-database': sendDatabase,
  'imap-kill': imapKill,
};
const shownViolations = 20;
const interruption = new Error('Interrupted.');
const interrupted = Promise.withResolvers<never>();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'disconnect'] as const) {
  process.on(signal, () => interrupted.reject(interruption));
}
interrupted.promise.catch(() => {});
process.channel?.unref();

const { names, areNamed, rounds, messages, short, seed } = readArguments();
const table = [['fault', 'rounds', 'acknowledged', 'lost', 'conjured', 'seconds', 'held']];
let isInterrupted = false;
interrupted.promise.catch(() => {
  isInterrupted = true;
});
for (const name of names) {
  if (isInterrupted) break;
  const fault = faults[name] as Fault;
  const lacking = fault.lacks?.();
  const row = lacking ? refuse(name, lacking) : await survive(name, fault);
  table.push([name, ...row]);
}
process.stderr.write(`\nseed ${seed}\n${formatTable(table)}\n`);
// A fault that reached its time limit may still wait for something.
process.exit();

/** The fault cannot run on this machine: always printed, and a failure when the fault was named. */
function refuse(name: string, lacking: string): string[] {
  process.stderr.write(`${name}: not run: ${lacking}\n`);
  if (areNamed) process.exitCode = 1;
  return ['0', '-', '-', '-', '0', `not run: ${lacking}`];
}

/** Returns the fault's row of the table. */
async function survive(name: string, fault: Fault): Promise<string[]> {
  const began = performance.now();
  const undoing: Parameters<FaultRun['defer']>[0][] = [];
  const log = (line: string) => process.stderr.write(`${name}: ${line}\n`);
  const count = rounds ?? fault.rounds[short ? 'short' : 'usual'];
  const again = `npm run test:faults -- ${name} --rounds ${count} --seed ${seed}${short ? ' --short' : ''}${messages ? ` --messages ${messages}` : ''}`;
  log(`${count} rounds, seed ${seed} (again with: ${again})`);
  let outcome: Outcome;
  try {
    const work = fault.run({
      rounds: count,
      short,
      messages,
      random: makeRandom(seed),
      log,
      defer: (undo) => undoing.push(undo),
    });
    outcome = await Promise.race([
      work,
      interrupted.promise,
      giveUpAfter(fault.boundMs(count, short, messages)),
    ]);
  } catch (error) {
    const broken = error === interruption ? interruption.message : ((error as Error).stack ?? String(error));
    outcome = { acknowledged: 0, lost: [], conjured: [], broken: [broken] };
  }
  const { acknowledged, lost, conjured, broken } = outcome;
  const violations = [...lost, ...conjured, ...broken];
  const held = violations.length === 0;
  const hasEvidence = !held && !violations.includes(interruption.message);
  for (const violation of violations.slice(0, shownViolations)) log(`✗ ${violation}`);
  if (violations.length > shownViolations) log(`✗ and ${violations.length - shownViolations} more`);
  for (const undo of undoing.reverse()) {
    await Promise.race([undo(!hasEvidence), giveUpAfter(30_000)]).catch((error) =>
      log(`could not clean up: ${error.message}`),
    );
  }
  const seconds = Math.round((performance.now() - began) / 1000);
  log(`${held ? '✓ held' : `✗ did not hold, seed ${seed}`} (${seconds} s)`);
  if (!held) process.exitCode = 1;
  return [...[count, acknowledged, lost.length, conjured.length, seconds].map(String), held ? 'yes' : 'NO'];
}

async function giveUpAfter(ms: number): Promise<never> {
  await delay(ms, undefined, { ref: false });
  throw new Error(`It was not over after ${ms / 1000} seconds.`);
}

function readArguments() {
  try {
    const { values, positionals } = parseArgs({
      options: {
        rounds: { type: 'string' },
        messages: { type: 'string' },
        seed: { type: 'string' },
        short: { type: 'boolean' },
        help: { type: 'boolean' },
      },
      allowPositionals: true,
    });
    const unknown = positionals.find((name) => !(name in faults));
    if (unknown) throw new Error(`There is no fault ${unknown}.`);
    if (values.help) throw new Error('Breaks a real service on purpose.');
    return {
      names: positionals.length > 0 ? positionals : Object.keys(faults),
      areNamed: positionals.length > 0,
      rounds: readNumber('--rounds', values.rounds),
      messages: readNumber('--messages', values.messages),
      short: values.short === true,
      seed: readNumber('--seed', values.seed) ?? randomInt(1, 2 ** 31),
    };
  } catch (error) {
    const list = formatTable(Object.entries(faults).map(([name, { about }]) => [name, about]));
    process.stderr.write(
      `${(error as Error).message}\nnpm run test:faults -- [fault …] [--short] [--rounds N] [--messages N] [--seed S]\n${list}\n`,
    );
    process.exit(2);
  }
}

function readNumber(option: string, given: string | undefined): number | undefined {
  if (given === undefined || /^[1-9]\d{0,9}$/.test(given))
    return given === undefined ? undefined : Number(given);
  throw new Error(`${option} takes a whole number from 1 on.`);
}
