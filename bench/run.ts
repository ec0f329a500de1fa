/**
 * `npm run bench [-- <names>] [--against postgres://… | <commit>] [--profile]`: runs the named scenarios, or all. Prints a line of JSON for
 * each scenario to stdout, and progress and a table to stderr; bench/results has the same and a chart. Exit codes: 0 all goals
 * met, 1 a goal missed or a scenario failed, 2 wrong arguments, 130 Ctrl-C. Studies (soak, scale, model, search) run only when named.
 * `--smoke`: with a hundredth of the work, several at once, on one PostgreSQL. Only shows that every scenario still works.
 */
import { parseArgs } from 'node:util';
import { findBinaries } from '../src/db/embedded/binaries.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { suggest } from '../src/lib/suggest.ts';
import { table } from '../src/lib/table.ts';
import { openCheckout, readAgainst, thisCheckout } from './checkout.ts';
import { requireServer, startServer } from './database.ts';
import { makeProfiling } from './profiling.ts';
import { describeMachine } from './report/machine.ts';
import {
  checkFigures,
  compareRounds,
  isCompared,
  jsonLine,
  type Outcome,
  tableHead,
  tableRows,
} from './report/outcome.ts';
import { describeRun, saveResult, saveRun } from './report/results.ts';
import { type Bench, type Scenario, type Study, withCleanup } from './scenario.ts';
import * as apiRead from './scenarios/api-read.ts';
import * as apiWrite from './scenarios/api-write.ts';
import * as backlog from './scenarios/backlog.ts';
import * as deadDestination from './scenarios/dead-destination.ts';
import * as deletion from './scenarios/delete.ts';
import * as deliver from './scenarios/deliver.ts';
import * as deliverMany from './scenarios/deliver-many.ts';
import * as fanOut from './scenarios/fan-out.ts';
import * as idle from './scenarios/idle.ts';
import * as idleMail from './scenarios/idle-mail.ts';
import * as imap from './scenarios/imap.ts';
import * as inbound from './scenarios/inbound.ts';
import * as inboundMx from './scenarios/inbound-mx.ts';
import * as isolation from './scenarios/isolation.ts';
import * as latency from './scenarios/latency.ts';
import * as memory from './scenarios/memory.ts';
import * as message from './scenarios/message.ts';
import * as retention from './scenarios/retention.ts';
import * as send from './scenarios/send.ts';
import * as slowEndpoint from './scenarios/slow-endpoint.ts';
import * as stream from './scenarios/stream.ts';
import * as submit from './scenarios/submit.ts';
import * as tenants from './scenarios/tenants.ts';
import * as unread from './scenarios/unread.ts';
import * as model from './studies/model.ts';
import * as scale from './studies/scale.ts';
import * as search from './studies/search.ts';
import * as soak from './studies/soak.ts';

const scenarios: readonly Scenario[] = [
  apiRead,
  apiWrite,
  deliver,
  deliverMany,
  fanOut,
  backlog,
  isolation,
  slowEndpoint,
  inbound,
  inboundMx,
  submit,
  send,
  deadDestination,
  imap,
  idleMail,
  latency,
  stream,
  memory,
  message,
  retention,
  idle,
  unread,
  deletion,
  ...tenants.scenarios,
];
const studies: readonly Study[] = [soak, scale, model, search];
const groups = new Set(scenarios.flatMap(({ group }) => group ?? []));

/** Most of a scenario waits: for a start, an end, a timer. */
const smokesAtOnce = 4;
/** A scenario that still waits after this time has failed. Long, because CI may run on a busy machine. */
const smokeLimitMs = 300_000;

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
  process.exitCode = await withCleanup(async (defer) => {
    const selected = await selectScenarios(asked, defer);
    return asked.smoke ? smoke(asked, selected) : runAll(asked, selected, postgres);
  });
} catch (error) {
  if (stopping.signal.aborted) process.exitCode = 130;
  else if (!(error instanceof OperatorError)) throw error;
  else {
    process.stderr.write(`${error.message}\n`);
    process.exitCode = 2;
  }
}

interface Asked {
  /** Empty: all scenarios. */
  names: string[];
  /** A PostgreSQL server. */
  against: string | null;
  /** Another commit to compare with. */
  commit: string | null;
  profile: boolean;
  smoke: boolean;
  /** The duration of a soak. */
  minutes: number;
}

function listNames(): string[] {
  return [...scenarios, ...studies].map(({ name }) => name);
}

function isAsked({ names }: Asked, { name, group = name }: Scenario): boolean {
  return names.length === 0 || names.includes(name) || names.includes(group);
}

/** With a commit: the comparisons with it. */
async function selectScenarios(asked: Asked, defer: Bench['defer']): Promise<Scenario[]> {
  const selected = scenarios.filter((scenario) => isAsked(asked, scenario));
  if (asked.commit === null) return selected;
  const lacking = selected.filter(({ against }) => !against).map(({ name }) => name);
  if (lacking.length > 0 || selected.length === 0) {
    const able = scenarios.filter(({ against }) => against).map(({ name }) => name);
    throw new OperatorError(`--against with a commit works with: ${able.join(', ')}. Name one of them.`);
  }
  const log = (text: string) => process.stderr.write(`${text}\n`);
  const other = await openCheckout({ defer, log, signal: stopping.signal }, asked.commit);
  return selected.flatMap(({ against }) => against?.(other) ?? []);
}

function readArguments(): Asked {
  const { values, positionals } = parse();
  const known = [...listNames(), ...groups];
  const unknown = positionals.filter((name) => !known.includes(name));
  if (unknown.length > 0) {
    const lines = unknown.map((name) => {
      const near = suggest(name, known);
      return `No scenario with the name ${name}.${near ? ` Did you mean ${near}?` : ''}`;
    });
    throw new OperatorError([...lines, `Scenarios and studies: ${known.join(', ')}`].join('\n'));
  }
  const minutes = Number(values.minutes ?? 30);
  if (!(minutes > 0)) throw new OperatorError(`--minutes must be a number above 0; it is ${values.minutes}.`);
  return {
    names: positionals,
    ...readAgainst(values.against),
    profile: values.profile ?? false,
    smoke: values.smoke ?? false,
    minutes,
  };
}

function parse() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: {
        against: { type: 'string' },
        profile: { type: 'boolean' },
        smoke: { type: 'boolean' },
        minutes: { type: 'string' },
      },
    });
  } catch (cause) {
    const names = [...listNames(), ...groups].join(', ');
    const usage =
      'npm run bench -- [name …] [--against postgres://… | <commit>] [--profile] [--smoke] [--minutes N]';
    throw new OperatorError(`${usage}\nNames: ${names}. More in bench/README.md.`, { cause });
  }
}

async function runAll(asked: Asked, selected: readonly Scenario[], postgres: string): Promise<number> {
  const run = describeRun(describeMachine(postgres), asked.profile);
  const began = performance.now();
  let allMet = true;
  for (const study of studies) {
    if (!asked.names.includes(study.name)) continue;
    allMet = (await runStudy(study, asked)) && allMet;
    if (stopping.signal.aborted) return 130;
  }
  const outcomes: Outcome[] = [];
  const failed: string[] = [];
  for (const scenario of selected) {
    const outcome = await runOne(scenario, asked);
    if (stopping.signal.aborted) return 130;
    if (outcome) outcomes.push(outcome);
    else failed.push(scenario.name);
  }
  if (outcomes.length + failed.length === 0) return allMet ? 0 : 1;
  const seconds = secondsSince(began);
  const rows = [tableHead, ...outcomes.flatMap(tableRows), ...failed.map((name) => [name, 'failed'])];
  const saved = saveRun(run, outcomes, failed, seconds);
  const minutes = (seconds / 60).toFixed(1);
  process.stderr.write(`\n${table(rows)}\n\nTotal time: ${minutes} minutes. Saved: ${saved.join(', ')}\n`);
  return allMet && failed.length === 0 && outcomes.every(({ met }) => met) ? 0 : 1;
}

/** The scenarios as quickly as possible; a missed goal means nothing here. */
async function smoke(asked: Asked, selected: readonly Scenario[]): Promise<number> {
  return withCleanup(async (defer) => {
    const against = asked.against ?? (await startServer(defer));
    const left = [...selected];
    const failed: string[] = [];
    const work = async () => {
      for (let next = left.shift(); next && !stopping.signal.aborted; next = left.shift())
        // Twice: a port that was free may be taken by another scenario before the service listens there.
        if (!(await tryOut(next, { ...asked, against })) && !(await tryOut(next, { ...asked, against })))
          failed.push(next.name);
    };
    await Promise.all(Array.from({ length: smokesAtOnce }, work));
    if (stopping.signal.aborted) return 130;
    process.stderr.write(failed.length > 0 ? `Failed: ${failed.join(', ')}\n` : 'All scenarios work.\n');
    return failed.length > 0 ? 1 : 0;
  });
}

/** Whether every figure of the scenario was measured. A scenario that cannot run on this machine is skipped. */
async function tryOut(scenario: Scenario, asked: Asked): Promise<boolean> {
  const missing = scenario.findMissing?.();
  if (missing) {
    process.stderr.write(`${scenario.name}: skipped. ${missing}\n`);
    return true;
  }
  const measured = await attempt(scenario.name, asked, async (bench) => {
    const taken: Record<string, readonly unknown[]> = isCompared(scenario)
      ? { ratio: await scenario.run(bench) }
      : await scenario.run(bench);
    const figures = isCompared(scenario) ? ['ratio'] : Object.keys(scenario.goal);
    const missing = figures.filter((figure) => !taken[figure]?.length);
    if (missing.length > 0) throw new Error(`Not measured: ${missing.join(', ')}`);
    return true;
  });
  return measured ?? false;
}

/** Null when the scenario failed. */
async function runOne(scenario: Scenario, asked: Asked): Promise<Outcome | null> {
  const began = performance.now();
  return attempt(scenario.name, asked, async (bench) => {
    const missing = scenario.findMissing?.();
    if (missing) throw new Error(missing);
    const outcome = isCompared(scenario)
      ? compareRounds(scenario, await scenario.run(bench), secondsSince(began))
      : checkFigures(scenario, await scenario.run(bench), secondsSince(began));
    process.stdout.write(`${jsonLine(outcome)}\n`);
    return outcome;
  });
}

/** Whether the study met its goal. */
async function runStudy(study: Study, asked: Asked): Promise<boolean> {
  const finding = await attempt(study.name, { ...asked, profile: false }, (bench) => study.run(bench, asked));
  if (!finding) return false;
  const { value, rows, files, met } = finding;
  process.stdout.write(`${JSON.stringify({ scenario: study.name, value, met })}\n`);
  const saved = Object.entries(files).map(([name, text]) => saveResult(name, text));
  const where = saved.length > 0 ? `\nSaved: ${saved.join(', ')}\n` : '';
  process.stderr.write(`\n${table(rows)}\n${where}`);
  return met;
}

/** Null when it failed; the error is printed. */
async function attempt<T>(
  name: string,
  { against, profile, smoke }: Asked,
  work: (bench: Bench) => Promise<T>,
): Promise<T | null> {
  const log = (text: string) => process.stderr.write(`${name}: ${text}\n`);
  const signals = smoke ? [AbortSignal.timeout(smokeLimitMs)] : [];
  const signal = AbortSignal.any([stopping.signal, ...signals]);
  try {
    return await withCleanup(async (defer) => {
      const profiling = profile ? makeProfiling() : null;
      const size = (usual: number) => (smoke ? Math.ceil(usual / 100) : usual);
      const measured: Bench['measured'] = (work) => (profiling ? profiling.during(work) : work());
      const done = await work({
        signal,
        log,
        defer,
        measured,
        size,
        against,
        checkout: thisCheckout,
        profiling,
      });
      if (profiling) log(`profile saved: ${profiling.save(name).join(', ')}`);
      return done;
    });
  } catch (error) {
    if (error instanceof OperatorError) throw error;
    const aborted = stopping.signal.aborted;
    log(aborted ? 'stopping' : `failed. ${error instanceof Error ? error.stack : String(error)}`);
    return null;
  }
}

function secondsSince(began: number): number {
  return Math.round((performance.now() - began) / 100) / 10;
}
