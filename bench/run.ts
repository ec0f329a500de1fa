/**
 * `npm run bench [-- <names>]`: runs the scenarios named, or all. On stdout a line of JSON for each, on stderr progress
 * and in the end a table. Exit codes: 0 every goal met, 1 one missed or failed, 2 no such scenario, 130 Ctrl-C.
 */
import { suggest } from '../src/lib/suggest.ts';
import * as apiRead from './api-read.ts';
import * as apiWrite from './api-write.ts';
import type { Rates, Scenario } from './scenario.ts';

const scenarios: readonly Scenario[] = [apiRead, apiWrite];

const rows = [
  ['scenario', 'service/s', 'lowest–highest', 'control/s', 'lowest–highest', 'ratio', 'goal', ''],
];
const stopping = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => stopping.abort(new Error('Stopped.')));
}
// The launcher was killed.
process.on('disconnect', () => stopping.abort(new Error('Stopped.')));
process.channel?.unref();

const names = process.argv.slice(2);
const unknown = names.filter((name) => !find(name));
if (unknown.length > 0) refuse(unknown);
else process.exitCode = await runAll(names.length > 0 ? scenarios.filter(isNamed) : scenarios);

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
    return report(scenario, await scenario.run({ signal: stopping.signal, tell, defer }));
  } catch (error) {
    const aborted = stopping.signal.aborted;
    tell(aborted ? 'stopping' : `failed. ${error instanceof Error ? error.stack : String(error)}`);
    return false;
  } finally {
    for (const cleanup of cleanups) await cleanup();
  }
}

function report({ name, goal }: Scenario, rates: Rates): boolean {
  const value = round(median(rates.service), 1);
  const control = round(median(rates.control), 1);
  const ratio = round(value / control, 3);
  const met = ratio >= goal;
  process.stdout.write(`${JSON.stringify({ scenario: name, value, control, ratio, goal, met })}\n`);
  rows.push([
    name,
    value.toFixed(0),
    spread(rates.service),
    control.toFixed(0),
    spread(rates.control),
    ratio.toFixed(2),
    goal.toFixed(2),
    met ? '✓' : '✗ missed',
  ]);
  return met;
}

function find(name: string): Scenario | undefined {
  return scenarios.find((scenario) => scenario.name === name);
}

function isNamed(scenario: Scenario): boolean {
  return names.includes(scenario.name);
}

function refuse(unknown: readonly string[]): void {
  const known = scenarios.map(({ name }) => name);
  for (const name of unknown) {
    const near = suggest(name, known);
    process.stderr.write(`There is no scenario ${name}.${near ? ` Did you mean ${near}?` : ''}\n`);
  }
  process.stderr.write(`Known: ${known.join(', ')}\n`);
  process.exitCode = 2;
}

function median(numbers: readonly number[]): number {
  const sorted = numbers.toSorted((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  const [low = Number.NaN, high = low] = [sorted[Math.floor(middle)], sorted[Math.ceil(middle)]];
  return (low + high) / 2;
}

function spread(numbers: readonly number[]): string {
  return `${Math.min(...numbers).toFixed(0)}–${Math.max(...numbers).toFixed(0)}`;
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
