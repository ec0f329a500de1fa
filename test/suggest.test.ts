/** Which known word a mistyped one is taken for, and when none is. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { suggest } from '../src/lib/suggest.ts';

const long = 'x'.repeat(64);

const table: [given: string, known: string[], expected: string | undefined][] = [
  ['webhook', ['identity', 'webhook'], 'webhook'],
  ['WEBHOOK', ['webhooks', 'webhook'], 'webhook'],
  ['POSTHORN_PROT', ['POSTHORN_PORT', 'POSTHORN_HOST'], 'POSTHORN_PORT'],
  ['posthorn_port', ['POSTHORN_PORT'], 'POSTHORN_PORT'],
  ['wehbook', ['webhook'], 'webhook'],
  ['webook', ['webhook'], 'webhook'],
  ['webhooook', ['webhook'], 'webhook'],
  ['wabhoak', ['webhook'], 'webhook'],
  ['ewbhoko', ['webhook'], 'webhook'],
  ['wabhaak', ['webhook'], undefined],
  ['webhoooook', ['webhook'], undefined],
  ['prot', ['port'], 'port'],
  ['por', ['port'], 'port'],
  ['part', ['port', 'pert'], 'port'],
  ['host', ['port'], undefined],
  ['portal', ['port'], undefined],
  ['values', ['valid', 'value'], 'value'],
  ['event', ['events', 'events'], 'events'],
  ['', ['port'], undefined],
  ['port', [], undefined],
  ['port', [''], undefined],
  [`${long.slice(1)}y`, [long], long],
  [`${long}x`, [long], undefined],
  [long, [`${long}x`], undefined],
  ['x'.repeat(1_000_000), [long], undefined],
];

for (const [given, known, expected] of table) {
  test(`${given.slice(0, 20)} among ${known.join(', ').slice(0, 40)}: ${expected?.slice(0, 20)}`, () => {
    assert.equal(suggest(given, known), expected);
  });
}
