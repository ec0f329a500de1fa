/**
 * Calculates what a load needs, from the measured cost of a message and of a delivery (`npm run bench -- scale`). The
 * calculation leaves out lock waits, the network and slow receivers, as docs/scaling.md says.
 */

export interface Cost {
  serviceCpuMs: number;
  postgresCpuMs: number;
  walBytes: number;
  rows: number;
  /** Disk until the retention ends, with indexes. */
  diskBytes: number;
}

export interface Costs {
  /** A message: received, checked and stored, with its event. */
  message: Cost;
  /** A delivery: queued, claimed, signed, posted, recorded. */
  delivery: Cost;
  /** Disk of one identity. */
  identityBytes: number;
}

export interface Load {
  deliveriesPerSecond: number;
  deliveriesPerMessage: number;
  identities: number;
  retentionDays: number;
}

export interface Need {
  serviceProcesses: number;
  serviceCores: number;
  serviceMemoryGb: number;
  postgresCores: number;
  connections: number;
  rowsPerSecond: number;
  walMbPerSecond: number;
  diskGbPerDay: number;
  diskTb: number;
  identitiesGb: number;
}

/** The load may use this share of the processors: bursts, vacuum and the purge need the rest. */
const fill = 0.6;
/** Of a process that takes mail and delivers: the pool, group commits, the delivery loop and LISTEN (src/start/loops.ts). */
const connectionsEach = 10 + 1 + 5 + 1;
/** The memory goal of one process. */
const memoryMbEach = 300;
const secondsPerDay = 86_400;

export function needOf({ message, delivery, identityBytes }: Costs, load: Load): Need {
  const messagesPerSecond = load.deliveriesPerSecond / load.deliveriesPerMessage;
  const perSecond = (read: (cost: Cost) => number) =>
    messagesPerSecond * read(message) + load.deliveriesPerSecond * read(delivery);
  const serviceCores = perSecond((cost) => cost.serviceCpuMs) / 1000 / fill;
  // JavaScript runs on one core of a process.
  const serviceProcesses = Math.max(1, Math.ceil(serviceCores));
  const diskGbPerDay = (perSecond((cost) => cost.diskBytes) * secondsPerDay) / 1e9;
  const identitiesGb = (load.identities * identityBytes) / 1e9;
  return {
    serviceProcesses,
    serviceCores,
    serviceMemoryGb: (serviceProcesses * memoryMbEach) / 1000,
    postgresCores: perSecond((cost) => cost.postgresCpuMs) / 1000 / fill,
    connections: serviceProcesses * connectionsEach,
    rowsPerSecond: perSecond((cost) => cost.rows),
    walMbPerSecond: perSecond((cost) => cost.walBytes) / 1e6,
    diskGbPerDay,
    diskTb: (diskGbPerDay * load.retentionDays + identitiesGb) / 1000,
    identitiesGb,
  };
}

/** The resources of one PostgreSQL server. */
export interface Server {
  postgresCores: number;
  walMbPerSecond: number;
  diskTb: number;
  connections: number;
}

/** The resource that limits the load first, and the share of it that the load needs. Above 1 the load does not fit. */
export function firstLimit(need: Need, server: Server): { limit: keyof Server; share: number } {
  const keys = Object.keys(server) as (keyof Server)[];
  const shares = keys.map((limit) => ({ limit, share: need[limit] / server[limit] }));
  return shares.reduce((worst, one) => (one.share > worst.share ? one : worst));
}
