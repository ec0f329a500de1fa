/** `npm run bench -- model`: what several loads need, by the costs that `npm run bench -- scale` measured on this machine. */
import { OperatorError } from '../../src/lib/operator-error.ts';
import { type Costs, firstLimit, needOf, type Server } from '../model.ts';
import { round } from '../report/outcome.ts';
import { readResult } from '../report/results.ts';
import type { Bench, Finding } from '../scenario.ts';

export const name = 'model';

/** A large machine of today with good disks. */
const server: Server = { postgresCores: 32, walMbPerSecond: 250, diskTb: 20, connections: 1000 };
const levels = [100, 1000, 3000, 10_000];
const rest = { deliveriesPerMessage: 1, identities: 1_000_000, retentionDays: 30 };

export async function run(_bench: Bench): Promise<Finding> {
  const text = readResult('scale.json');
  if (text === null)
    throw new OperatorError('The model needs measured costs. Run first: npm run bench -- scale');
  const { costs } = JSON.parse(text) as { costs: Costs };
  const value = levels.map((deliveriesPerSecond) => {
    const load = { ...rest, deliveriesPerSecond };
    const need = needOf(costs, load);
    const rounded = Object.fromEntries(Object.entries(need).map(([key, number]) => [key, round(number, 2)]));
    const { limit, share } = firstLimit(need, server);
    return { load, need: rounded, first: { limit, share: round(share, 2) } };
  });
  const keys = Object.keys(value[0]?.need ?? {});
  const rows = [
    ['deliveries/s', ...levels.map((level) => level.toLocaleString('en'))],
    ...keys.map((key) => [key, ...value.map(({ need }) => String(need[key]))]),
    [
      'first limit of one server',
      ...value.map(({ first }) => `${first.limit} ${Math.round(first.share * 100)} %`),
    ],
  ];
  return { value: { server, levels: value }, rows, files: {}, met: true };
}
