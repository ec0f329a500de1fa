/**
 * Compares what a message or a delivery costs in this checkout and in another commit. In each round both run, one after the other:
 * a new service on an empty database, which is stopped before the other one starts. The figure is the ratio of the two in one
 * round, so that other load on the machine affects both.
 */
import { table } from '../src/lib/table.ts';
import { thisCheckout } from './checkout.ts';
import type { DeliveryBench } from './deliveries.ts';
import { type Bench, type Checkout, median, type Taken, withCleanup } from './scenario.ts';
import {
  findPostmaster,
  readCpuMs,
  readMainThreadCpuMs,
  readServerCpuMs,
  readTables,
  readWalBytes,
} from './usage.ts';

/** Of one message or delivery: processor time, disk and write-ahead log. */
export interface Cost {
  mainMs: number;
  /** All other threads of the service: those of V8, and workers. */
  threadsMs: number;
  postgresMs: number;
  diskKb: number;
  logKb: number;
  perSecond: number;
}

/** By the name of the measurement. */
export type Costs = Record<string, Cost>;

/** Before the first measurement of each service. */
export const warmUpCount = 10_000;
const usualRounds = 5;

/** `work` ends when all of it is recorded. */
export async function measureCost(
  bench: Bench,
  { service, sql }: Pick<DeliveryBench, 'service' | 'sql'>,
  count: number,
  work: () => Promise<unknown>,
): Promise<Cost> {
  const postmaster = await findPostmaster(sql);
  const read = async () => ({
    disk: (await readTables(sql)).reduce((sum, { bytes }) => sum + bytes, 0),
    log: await readWalBytes(sql),
    main: readMainThreadCpuMs(service.pid),
    process: readCpuMs(service.pid),
    postgres: readServerCpuMs(postmaster),
    time: performance.now(),
  });
  // A page is written whole to the log at its first change after a checkpoint: the same start for every measurement.
  await sql`checkpoint`;
  const before = await read();
  await bench.measured(work);
  const after = await read();
  const each = (key: keyof typeof before) => (after[key] - before[key]) / count;
  return {
    mainMs: each('main'),
    threadsMs: each('process') - each('main'),
    postgresMs: each('postgres'),
    diskKb: each('disk') / 1000,
    logKb: each('log') / 1000,
    perSecond: 1000 / each('time'),
  };
}

/** For each measurement of `measure`: the ratio of the processor times in each round, and the milliseconds of both. */
export async function compareWith(
  bench: Bench,
  other: Checkout,
  measure: (bench: Bench) => Promise<Costs>,
): Promise<Taken> {
  const rounds = bench.size(usualRounds);
  const calibrationMs: number[] = [];
  const ours: Costs[] = [];
  const theirs: Costs[] = [];
  // Compiles the loop.
  calibrate();
  for (let round = 1; round <= rounds; round += 1) {
    const turn = async (checkout: Checkout) => {
      const calibration = calibrate();
      calibrationMs.push(calibration);
      bench.log(`round ${round} of ${rounds}, ${checkout.name}: calibration ${calibration.toFixed(0)} ms`);
      const costs = await withCleanup((defer) => measure(benchOf({ ...bench, defer }, checkout)));
      for (const [name, cost] of Object.entries(costs))
        bench.log(`${checkout.name}, ${name}: ${describe(cost)}`);
      (checkout === other ? theirs : ours).push(costs);
    };
    // Every second round starts with the other one, so that a machine that gets slower favours neither.
    const order = round % 2 === 1 ? [thisCheckout, other] : [other, thisCheckout];
    for (const checkout of order) await turn(checkout);
  }
  const taken = listFigures(ours, theirs);
  process.stderr.write(`\n${table(listRows(ours, theirs, taken, other.name))}\n\n`);
  return { ...taken, calibrationMs };
}

/** `--profile` shows this checkout only. */
function benchOf(bench: Bench, checkout: Checkout): Bench {
  if (checkout === thisCheckout) return { ...bench, checkout };
  return { ...bench, checkout, profiling: null, measured: (work) => work() };
}

export function listFigures(ours: readonly Costs[], theirs: readonly Costs[]): Taken {
  const taken: Taken = {};
  for (const name of Object.keys(ours[0] ?? {})) {
    const [own, others] = [cpuOf(ours, name), cpuOf(theirs, name)];
    taken[`${name}Ratio`] = own.map((ms, round) => ms / (others[round] ?? Number.NaN));
    taken[`${name}Ms`] = own;
    taken[`${name}OtherMs`] = others;
  }
  return taken;
}

/** Service and PostgreSQL, in each round. */
function cpuOf(rounds: readonly Costs[], name: string): number[] {
  return columnOf(rounds, name, ({ mainMs, threadsMs, postgresMs }) => mainMs + threadsMs + postgresMs);
}

function columnOf(rounds: readonly Costs[], name: string, read: (cost: Cost) => number): number[] {
  return rounds.flatMap((costs) => (costs[name] ? [read(costs[name])] : []));
}

function listRows(ours: readonly Costs[], theirs: readonly Costs[], taken: Taken, other: string): string[][] {
  const head = [
    '',
    'commit',
    'main ms',
    'threads ms',
    'PostgreSQL ms',
    'sum ms',
    'disk KB',
    'log KB',
    'a second',
  ];
  const row = (rounds: readonly Costs[], name: string, cells: [string, string], ratio: string) => {
    const column = (read: (cost: Cost) => number, digits: number) =>
      median(columnOf(rounds, name, read)).toFixed(digits);
    const figures = [
      column(({ mainMs }) => mainMs, 3),
      column(({ threadsMs }) => threadsMs, 3),
      column(({ postgresMs }) => postgresMs, 3),
      median(cpuOf(rounds, name)).toFixed(3),
      column(({ diskKb }) => diskKb, 1),
      column(({ logKb }) => logKb, 1),
      column(({ perSecond }) => perSecond, 0),
    ];
    return [...cells, ...figures, ratio];
  };
  const rows = Object.keys(ours[0] ?? {}).flatMap((name) => {
    const ratios = taken[`${name}Ratio`] ?? [];
    const spread = `${Math.min(...ratios).toFixed(2)}–${Math.max(...ratios).toFixed(2)}`;
    return [
      row(ours, name, [name, thisCheckout.name], `${median(ratios).toFixed(2)} (${spread})`),
      row(theirs, name, ['', other], ''),
    ];
  });
  return [[...head, 'ratio'], ...rows];
}

function describe({ mainMs, threadsMs, postgresMs, perSecond }: Cost): string {
  const ms = (number: number) => `${number.toFixed(3)} ms`;
  return (
    `${ms(mainMs)} in the main thread, ${ms(threadsMs)} in other threads, ${ms(postgresMs)} in PostgreSQL; ` +
    `${perSecond.toFixed(0)} a second`
  );
}

/** The processor milliseconds of a fixed amount of JavaScript. They differ when other load slows the processor itself. */
function calibrate(): number {
  const before = process.threadCpuUsage();
  const words = new Map<string, number>();
  let hash = 0;
  for (let n = 0; n < 2_000_000; n += 1) {
    hash = (Math.imul(hash, 31) + n) | 0;
    const word = `w${hash & 4095}`;
    words.set(word, (words.get(word) ?? 0) + word.length);
  }
  const { user, system } = process.threadCpuUsage(before);
  return (user + system) / 1000;
}
