/**
 * A short run of every target of `npm run test:fuzz`, always with the same seed: what it finds came with the change at hand, and
 * `npm run test:fuzz -- <target> --seed 1 --case <number>` has it again.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { Random } from './fuzz/random.ts';
import { targets } from './fuzz/targets.ts';
import { makeDatabase } from './harness.ts';

const seed = 1;
const cases: Record<keyof typeof targets, number> = { mime: 100, smtp: 18, http: 4, values: 20 };

// One after another: a target that computes for seconds would time out the connections of the others.
describe('a short run of', { concurrency: false }, () => {
  for (const [name, target] of Object.entries(targets)) {
    test(name, async () => {
      const database = await makeDatabase();
      const fuzzed = await target.open({
        DATABASE_URL: database.url,
        POSTHORN_SECRET_KEY: randomBytes(32).toString('base64'),
      });
      const outcomes = new Set<string>();
      let next = 0;
      const work = async () => {
        while (next < (cases[name] ?? 0)) {
          const number = next++;
          const one = { number, random: Random.ofCase(seed, number), keep: () => {} };
          const told = await fuzzed.run(one).catch((cause) => {
            throw new Error(`Case ${number}`, { cause });
          });
          for (const outcome of told) outcomes.add(outcome);
        }
      };
      try {
        await Promise.all(Array.from({ length: fuzzed.lanes }, work));
      } finally {
        await fuzzed.close();
        await database.drop();
      }
      assert.ok(outcomes.size > 8, [...outcomes].join('\n'));
    });
  }
});
