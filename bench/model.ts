/**
 * What a load needs, worked out from the measured cost of a message and of a delivery (`npm run bench -- scale`). Pure
 * arithmetic: it knows no queues for locks, no network and no slow receivers, and says so in docs/scaling.md.
 */

export interface Cost {
  serviceCpuMs: number;
  postgresCpuMs: number;
  walBytes: number;
  rows: number;
  /** That stay until their retention ends, indexes included. */
  diskBytes: number;
}

export interface Costs {
  /** Taken, checked and kept, with its event. */
  message: Cost;
  /** Queued, claimed, signed, posted, recorded. */
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

/** Processors are not filled beyond this share: bursts, vacuum and the purge need the rest. */
const fill = 0.6;
/** A process: its pool, the pool of its delivery loop, and one connection that listens (src/main.ts). */
const connectionsEach = 10 + 5 + 1;
/** What a process may have resident by its goal. */
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

/** What one PostgreSQL server has. */
export interface Server {
  postgresCores: number;
  walMbPerSecond: number;
  diskTb: number;
  connections: number;
}

/** Of what one server has, what the load uses up first, and how much of it: beyond 1 it does not fit. */
export function firstLimit(need: Need, server: Server): { limit: keyof Server; share: number } {
  const keys = Object.keys(server) as (keyof Server)[];
  const shares = keys.map((limit) => ({ limit, share: need[limit] / server[limit] }));
  return shares.reduce((worst, one) => (one.share > worst.share ? one : worst));
}
