/** SPF as RFC 7208 has it, section by section, through `makeAuthenticate` and a DNS server. The vectors are in spf-vectors/. */
import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';
import { check, dns, plain } from './signing.ts';
import { exceptions } from './spf-vectors/exceptions.ts';
import { mechanismSections } from './spf-vectors/mechanisms.ts';
import { macroSections, modifierSections } from './spf-vectors/modifiers-and-macros.ts';
import { recordSections } from './spf-vectors/record.ts';
import type { Given, Vector, Zone } from './spf-vectors/vector.ts';

beforeEach(() => dns.reset());

const sections = [...recordSections, ...mechanismSections, ...modifierSections, ...macroSections];

for (const { title, zone, vectors } of sections) {
  describe(`RFC 7208 section ${title}`, () => {
    for (const vector of vectors) {
      const [record, result, given = {}] = vector;
      test(`${describeVector(vector)}: ${result}`, async () => {
        assert.equal(await checkSpf(record, given, zone), result);
      });
    }
  });
}

describe('exceptions from RFC 7208', () => {
  for (const { section, reason, cases } of exceptions) {
    describe(`RFC 7208 section ${section}. ${reason}`, () => {
      for (const [record, rfc, ours, given = {}] of cases) {
        test(`${describeVector([record, rfc, given])}: ${ours}, not ${rfc}`, async () => {
          assert.notEqual(ours, rfc, 'this is not an exception');
          assert.equal(await checkSpf(record, given), ours);
        });
      }
    });
  }
});

function describeVector([record, , { shows, ip, from, helo } = {}]: Vector): string {
  const text = [record].flat().join(' and ');
  const client = [
    from === undefined ? null : `MAIL FROM ${from ?? '<>'}`,
    helo === undefined ? null : `HELO ${helo}`,
    ip === undefined ? null : `client ${ip}`,
    shows ?? null,
  ].filter((part) => part !== null);
  const short = text.length > 80 ? `${text.slice(0, 80)}…` : text;
  return client.length > 0 ? `${short} (${client.join(', ')})` : short;
}

async function checkSpf(record: string | readonly string[], given: Given, shared: Zone = {}) {
  const zone = { ...shared, ...given.zone };
  for (const [name, answer] of Object.entries(zone)) dns.answer(name, answer);
  const own = zone['example.com'];
  dns.answer('example.com', { ...(typeof own === 'object' ? own : {}), TXT: [record].flat() });
  const { ip = '192.0.2.7', from = 'ada@example.com', helo = 'mail.example.com' } = given;
  return (await check(plain, { mailFrom: from, remoteIp: ip, helo })).spf.result;
}
