/** `npm run bench -- model`: what several loads need, from the costs that `npm run bench -- scale` measured on this machine. */
import { OperatorError } from '../../src/lib/operator-error.ts';
import { type Costs, firstLimit, type Load, needOf, type Server } from '../model.ts';
import { round } from '../report/outcome.ts';
import { readResult } from '../report/results.ts';
import type { Bench, Finding } from '../scenario.ts';

export const name = 'model';

/** A large machine with fast disks. */
const server: Server = { postgresCores: 32, walMbPerSecond: 250, diskTb: 20, connections: 1000 };
const loads: readonly Load[] = [
  { deliveriesPerSecond: 100, deliveriesPerMessage: 1, identities: 10_000, retentionDays: 30 },
  { deliveriesPerSecond: 1000, deliveriesPerMessage: 1, identities: 100_000, retentionDays: 30 },
  { deliveriesPerSecond: 10_000, deliveriesPerMessage: 1, identities: 1_000_000, retentionDays: 30 },
  { deliveriesPerSecond: 10_000, deliveriesPerMessage: 1, identities: 1_000_000, retentionDays: 1 },
  { deliveriesPerSecond: 10_000, deliveriesPerMessage: 10, identities: 1_000_000, retentionDays: 1 },
];

export async function run(_bench: Bench): Promise<Finding> {
  const text = readResult('scale.json');
  if (text === null)
    throw new OperatorError('The model needs measured costs. Run first: npm run bench -- scale');
  const { costs } = JSON.parse(text) as { costs: Costs };
  const value = loads.map((load) => {
    const need = needOf(costs, load);
    const rounded = Object.fromEntries(Object.entries(need).map(([key, number]) => [key, round(number, 2)]));
    const { limit, share } = firstLimit(need, server);
    return { load, need: rounded, first: { limit, share: round(share, 2) } };
  });
  const show = (of: 'load' | 'need') =>
    Object.keys(value[0]?.[of] ?? {}).map((key) => [
      key,
      ...value.map((one) => (one[of] as Record<string, number>)[key]?.toLocaleString('en') ?? ''),
    ]);
  const first = value.map(({ first }) => `${first.limit} ${Math.round(first.share * 100)} %`);
  const rows = [...show('load'), ...show('need'), ['first limit of one server', ...first]];
  return { value: { server, loads: value }, rows, files: {}, met: true };
}
