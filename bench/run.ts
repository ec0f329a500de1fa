/**
 * `npm run bench [-- <names>] [--against postgres://…] [--profile]`: runs the scenarios named, or all. On stdout a line of JSON for each,
 * on stderr progress and in the end a table; all of it, and a chart, in bench/results. Exit codes: 0 every goal met, 1 one
 * missed or failed, 2 it cannot run as asked, 130 Ctrl-C.
 */
import { parseArgs } from 'node:util';
import { findBinaries } from '../src/db/embedded-binaries.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { suggest } from '../src/lib/suggest.ts';
import { table } from '../src/lib/table.ts';
import { requireServer } from './database.ts';
import { makeProfiling } from './profiling.ts';
import { describeMachine } from './report/machine.ts';
import {
  isCompared,
  jsonLine,
  judgeFigures,
  judgeRounds,
  type Outcome,
  tableHead,
  tableRows,
} from './report/outcome.ts';
import { describeRun, saveRun } from './report/results.ts';
import { type Bench, type Scenario, withCleanup } from './scenario.ts';
import * as apiRead from './scenarios/api-read.ts';
import * as apiWrite from './scenarios/api-write.ts';
import * as backlog from './scenarios/backlog.ts';
import * as deletion from './scenarios/delete.ts';
import * as deliver from './scenarios/deliver.ts';
import * as deliverMany from './scenarios/deliver-many.ts';
import * as inbound from './scenarios/inbound.ts';
import * as inboundMx from './scenarios/inbound-mx.ts';
import * as isolation from './scenarios/isolation.ts';
import * as latency from './scenarios/latency.ts';
import * as memory from './scenarios/memory.ts';

const scenarios: readonly Scenario[] = [
  apiRead,
  apiWrite,
  deliver,
  deliverMany,
  backlog,
  isolation,
  inbound,
  inboundMx,
  latency,
  memory,
  deletion,
];

const stopping = new AbortController();
const stop = () => stopping.abort(new Error('Stopped.'));
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, stop);
// The launcher was killed.
process.on('disconnect', stop);
process.channel?.unref();

try {
  const asked = readArguments();
  const postgres = asked.against
    ? `${await requireServer(asked.against)}, not embedded`
    : `${(await findBinaries()).version.replace(/-.*/, '')}, embedded`;
  process.exitCode = await runAll(asked, postgres);
} catch (error) {
  if (!(error instanceof OperatorError)) throw error;
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 2;
}

interface Asked {
  /** None: all. */
  names: string[];
  against: string | null;
  profile: boolean;
}

function readArguments(): Asked {
  const { values, positionals } = parse();
  const known = scenarios.map(({ name }) => name);
  const unknown = positionals.filter((name) => !known.includes(name));
  if (unknown.length > 0) {
    const lines = unknown.map((name) => {
      const near = suggest(name, known);
      return `There is no scenario ${name}.${near ? ` Did you mean ${near}?` : ''}`;
    });
    throw new OperatorError([...lines, `Known: ${known.join(', ')}`].join('\n'));
  }
  return { names: positionals, against: values.against ?? null, profile: values.profile ?? false };
}

function parse() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: { against: { type: 'string' }, profile: { type: 'boolean' } },
    });
  } catch (cause) {
    throw new OperatorError((cause as Error).message, { cause });
  }
}

async function runAll(asked: Asked, postgres: string): Promise<number> {
  const run = describeRun(describeMachine(postgres), asked.profile);
  const began = performance.now();
  const outcomes: Outcome[] = [];
  const failed: string[] = [];
  for (const scenario of scenarios) {
    if (asked.names.length > 0 && !asked.names.includes(scenario.name)) continue;
    const outcome = await runOne(scenario, asked);
    if (stopping.signal.aborted) return 130;
    if (outcome) outcomes.push(outcome);
    else failed.push(scenario.name);
  }
  const seconds = secondsSince(began);
  const rows = [tableHead, ...outcomes.flatMap(tableRows), ...failed.map((name) => [name, 'failed'])];
  const saved = saveRun(run, outcomes, failed, seconds);
  const minutes = (seconds / 60).toFixed(1);
  process.stderr.write(`\n${table(rows)}\n\n${minutes} minutes in all. Saved: ${saved.join(', ')}\n`);
  return failed.length === 0 && outcomes.every(({ met }) => met) ? 0 : 1;
}

/** Null when it failed. */
async function runOne(scenario: Scenario, { against, profile }: Asked): Promise<Outcome | null> {
  const began = performance.now();
  const tell = (text: string) => process.stderr.write(`${scenario.name}: ${text}\n`);
  try {
    const outcome = await withCleanup(async (defer) => {
      const profiling = profile ? makeProfiling() : null;
      const measured: Bench['measured'] = (work) => (profiling ? profiling.during(work) : work());
      const bench = { signal: stopping.signal, tell, defer, measured, against, profiling };
      const judged = isCompared(scenario)
        ? judgeRounds(scenario, await scenario.run(bench), secondsSince(began))
        : judgeFigures(scenario, await scenario.run(bench), secondsSince(began));
      if (profiling) tell(`profile saved: ${profiling.save(scenario.name).join(', ')}`);
      return judged;
    });
    process.stdout.write(`${jsonLine(outcome)}\n`);
    return outcome;
  } catch (error) {
    const aborted = stopping.signal.aborted;
    tell(aborted ? 'stopping' : `failed. ${error instanceof Error ? error.stack : String(error)}`);
    return null;
  }
}

function secondsSince(began: number): number {
  return Math.round((performance.now() - began) / 100) / 10;
}
