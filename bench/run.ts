/**
 * `npm run bench [-- <names>]`: runs the scenarios named, or all. On stdout a line of JSON for each, on stderr progress
 * and in the end a table. Exit codes: 0 every goal met, 1 one missed or failed, 2 no such scenario, 130 Ctrl-C.
 */
import { suggest } from '../src/lib/suggest.ts';
import type { BoundedScenario, ComparedScenario, Figures, Round, Scenario } from './scenario.ts';
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

const rows = [['scenario', 'service/s', 'control/s', 'ratio', 'goal', '']];
const stopping = new AbortController();
const stop = () => stopping.abort(new Error('Stopped.'));
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, stop);
// The launcher was killed.
process.on('disconnect', stop);
process.channel?.unref();

const names = process.argv.slice(2);
const unknown = names.filter((name) => !scenarios.some((scenario) => scenario.name === name));
if (unknown.length > 0) {
  refuse(unknown);
  process.exitCode = 2;
} else {
  process.exitCode = await runAll(scenarios.filter(({ name }) => names.length === 0 || names.includes(name)));
}

async function runAll(chosen: readonly Scenario[]): Promise<number> {
  let allMet = true;
  for (const scenario of chosen) {
    const met = await runOne(scenario);
    if (stopping.signal.aborted) return 130;
    allMet &&= met;
  }
  if (rows.length > 1) process.stderr.write(`\n${table(rows)}\n`);
  return allMet ? 0 : 1;
}

/** Whether it met its goal. */
async function runOne(scenario: Scenario): Promise<boolean> {
  const cleanups: (() => void | Promise<void>)[] = [];
  const tell = (text: string) => process.stderr.write(`${scenario.name}: ${text}\n`);
  try {
    const defer = (cleanup: () => void | Promise<void>) => cleanups.unshift(cleanup);
    const bench = { signal: stopping.signal, tell, defer };
    return isCompared(scenario)
      ? report(scenario, await scenario.run(bench))
      : reportFigures(scenario, await scenario.run(bench));
  } catch (error) {
    const aborted = stopping.signal.aborted;
    tell(aborted ? 'stopping' : `failed. ${error instanceof Error ? error.stack : String(error)}`);
    return false;
  } finally {
    for (const cleanup of cleanups) await cleanup();
  }
}

function isCompared(scenario: Scenario): scenario is ComparedScenario {
  return typeof scenario.goal === 'number';
}

/** Prints the round with the median ratio, which needs an odd number of them. */
function report({ name, goal }: ComparedScenario, rounds: readonly Round[]): boolean {
  const middle = rounds.toSorted((a, b) => a.ratio - b.ratio)[(rounds.length - 1) / 2];
  if (!middle) throw new Error(`${rounds.length} rounds have no middle`);
  const value = round(middle.service, 1);
  const control = round(middle.control, 1);
  const ratio = round(middle.ratio, 3);
  const met = ratio >= goal;
  process.stdout.write(`${JSON.stringify({ scenario: name, value, control, ratio, goal, met })}\n`);

  const show = (key: keyof Round, digits: number) => {
    const all = rounds.map((one) => one[key]);
    const [least, most] = [Math.min(...all), Math.max(...all)];
    return `${middle[key].toFixed(digits)} (${least.toFixed(digits)}–${most.toFixed(digits)})`;
  };
  const shown = [show('service', 0), show('control', 0), show('ratio', 2)];
  rows.push([name, ...shown, goal.toFixed(2), met ? '✓' : '✗ missed']);
  return met;
}

/** A line of JSON for all of them, a row of the table for each. */
function reportFigures({ name, goal }: BoundedScenario, figures: Figures): boolean {
  const value: Figures = {};
  let allMet = true;
  for (const [figure, most] of Object.entries(goal)) {
    const found = round(figures[figure] ?? Number.NaN, 3);
    const met = found <= most;
    allMet &&= met;
    value[figure] = found;
    rows.push([`${name} ${figure}`, String(found), '', '', `≤ ${most}`, met ? '✓' : '✗ missed']);
  }
  const line = { scenario: name, value, control: null, ratio: null, goal, met: allMet };
  process.stdout.write(`${JSON.stringify(line)}\n`);
  return allMet;
}

function refuse(unknown: readonly string[]): void {
  const known = scenarios.map(({ name }) => name);
  for (const name of unknown) {
    const near = suggest(name, known);
    process.stderr.write(`There is no scenario ${name}.${near ? ` Did you mean ${near}?` : ''}\n`);
  }
  process.stderr.write(`Known: ${known.join(', ')}\n`);
}

function round(number: number, digits: number): number {
  return Number(number.toFixed(digits));
}

function table(rows: readonly (readonly string[])[]): string {
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? [];
  return rows
    .map((row) => row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join('  '))
    .map((line) => line.trimEnd())
    .join('\n');
}
