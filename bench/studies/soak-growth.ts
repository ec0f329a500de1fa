/** Compares the last third of a soak with the first third. Pure. */
import { round } from '../report/outcome.ts';
import { median } from '../scenario.ts';

export interface Sample {
  minute: number;
  /** The length of the sample. */
  seconds: number;
  /** Deliveries that arrived in this time. */
  received: number;
  serviceCpuMs: number;
  postgresCpuMs: number;
  /** At the end of the sample. */
  memoryMb: number;
}

/** The maximum of last third / first third. */
const most = { cost: 1.2, memory: 1.2 };

export function compareThirds(samples: readonly Sample[]) {
  const third = Math.floor(samples.length / 3);
  if (third === 0) throw new Error(`A soak needs at least 3 samples; there are ${samples.length}`);
  const [first, last] = [describe(samples.slice(0, third)), describe(samples.slice(-third))];
  const growth = {
    cost: round(last.cpuMs / first.cpuMs, 3),
    memory: round(last.memoryMb / first.memoryMb, 3),
  };
  const met = growth.cost <= most.cost && growth.memory <= most.memory;
  const row = (what: string, from: number, to: number, grown: number, bound: number) => [
    what,
    String(from),
    String(to),
    String(grown),
    `≤ ${bound}`,
    grown <= bound ? '✓' : '✗ missed',
  ];
  const rows = [
    ['soak', 'first third', 'last third', 'growth', 'goal', ''],
    row('processor ms of a delivery', first.cpuMs, last.cpuMs, growth.cost, most.cost),
    row('memory of the service, MB', first.memoryMb, last.memoryMb, growth.memory, most.memory),
    ['deliveries a second', String(first.perSecond), String(last.perSecond), '', '', ''],
  ];
  return { value: { first, last, growth }, rows, met };
}

function describe(samples: readonly Sample[]) {
  const sum = (read: (sample: Sample) => number) => samples.reduce((all, sample) => all + read(sample), 0);
  const received = sum((sample) => sample.received);
  return {
    perSecond: round(received / sum((sample) => sample.seconds), 1),
    cpuMs: round(sum((sample) => sample.serviceCpuMs + sample.postgresCpuMs) / received, 3),
    memoryMb: Math.round(median(samples.map((sample) => sample.memoryMb))),
  };
}
