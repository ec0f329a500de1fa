/** Describes the machine of a run, without names of hosts or people. */
import { readFileSync, statfsSync } from 'node:fs';
import os from 'node:os';

export interface Machine {
  cpu: string;
  cores: number;
  memoryGb: number;
  system: string;
  node: string;
  postgres: string;
  /** Load averages over 1, 5 and 15 minutes before the first scenario. */
  loadAtStart: number[];
  /** The filesystem of the folder with the embedded databases. */
  filesystem: string;
}

export function describeMachine(postgres: string): Machine {
  const cpus = os.cpus();
  return {
    cpu: cpus[0]?.model.trim() ?? 'unknown',
    cores: os.availableParallelism(),
    memoryGb: Number((os.totalmem() / 1e9).toFixed(1)),
    system: `${os.type()} ${os.release()} ${os.arch()}`,
    node: process.version,
    postgres,
    loadAtStart: os.loadavg().map((load) => Number(load.toFixed(2))),
    filesystem: readFilesystem(os.tmpdir()),
  };
}

/** From the table of mounts on Linux, else the type number of the system. */
function readFilesystem(folder: string): string {
  if (process.platform !== 'linux') return `type ${statfsSync(folder).type}`;
  const mounts = readFileSync('/proc/self/mounts', 'utf8')
    .trim()
    .split('\n')
    .map((line) => line.split(' '));
  const isWithin = (at: string) => at === '/' || folder === at || folder.startsWith(`${at}/`);
  const [nearest] = mounts
    .filter(([, at = '']) => isWithin(at))
    .sort(([, one = ''], [, other = '']) => other.length - one.length);
  return nearest?.[2] ?? 'unknown';
}

export function formatMachine(machine: Machine): string {
  const { cpu, cores, memoryGb, system, node, postgres, loadAtStart, filesystem } = machine;
  const rows = [
    ['Processor', `${cpu}, ${cores} cores`],
    ['Memory', `${memoryGb} GB`],
    ['System', system],
    ['Filesystem of the database', filesystem],
    ['Node', node],
    ['PostgreSQL', postgres],
    ['Load at the start (1, 5, 15 minutes)', loadAtStart.join(', ')],
  ];
  return rows.map(([name, value]) => `| ${name} | ${value} |`).join('\n');
}
