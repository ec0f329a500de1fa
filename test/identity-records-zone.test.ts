import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import type { DnsRecord } from '../src/contract/identity.ts';
import { decideRecords } from '../src/identities/records.ts';
import { writeZone } from '../src/identities/zone.ts';
import { anyCharacter } from './any-character.ts';

const publicKey = 'A'.repeat(392);
const records = decideRecords(
  {
    domain: 'example.com',
    token: 'tok',
    incomingDomain: true,
    mailHost: 'mx.posthorn.example',
    dkimKeys: [{ selector: 'ph20261115-abc123', publicKey }],
  },
  new Map(),
  new Date(),
);

function textRecord(value: string, name = 'a.example'): DnsRecord {
  return { ...(records[0] as DnsRecord), name, value };
}

test('a snippet to paste', () => {
  const key = `v=DKIM1; k=rsa; p=${publicKey}`;
  assert.equal(
    writeZone('example.com', records),
    `; DNS records of example.com. for Posthorn

; Ownership: proves that you own the domain (required)
_posthorn.example.com. 3600 IN TXT "posthorn-verification=tok"

; Incoming mail (required)
example.com. 3600 IN MX 10 mx.posthorn.example.

; SPF: replaces the SPF record of the domain, if there is one (recommended)
example.com. 3600 IN TXT "v=spf1 a:mx.posthorn.example ~all"

; DKIM: the public key that receivers verify signatures with (recommended)
ph20261115-abc123._domainkey.example.com. 3600 IN TXT "${key.slice(0, 255)}" "${key.slice(255)}"

; DMARC: replaces the DMARC record of the domain, if there is one (recommended)
_dmarc.example.com. 3600 IN TXT "v=DMARC1; p=none"
`,
  );
});

describe('strings', () => {
  const cases: [string, string, string][] = [
    ['a quotation mark and a backslash', 'a"b\\c', '"a\\034b\\092c"'],
    ['a line end', 'a\nb', '"a\\010b"'],
    ['an umlaut', 'ä', '"\\195\\164"'],
    ['nothing', '', '""'],
    ['255 bytes', 'x'.repeat(255), `"${'x'.repeat(255)}"`],
    ['256 bytes', 'x'.repeat(256), `"${'x'.repeat(255)}" "x"`],
    ['a semicolon, which is no comment inside', 'a;b', '"a;b"'],
  ];
  for (const [title, value, written] of cases) {
    test(title, () => {
      assert.match(writeZone('example.com', [textRecord(value)]), /TXT (.*)\n$/);
      assert.equal(/TXT (.*)\n$/.exec(writeZone('example.com', [textRecord(value)]))?.[1], written);
    });
  }
});

test('a name keeps to its line', () => {
  const zone = writeZone('x\n$INCLUDE /etc/passwd', [textRecord('v', 'a b;c\n.example.')]);
  assert.ok(zone.startsWith('; DNS records of x\\010\\036INCLUDE\\032\\047etc\\047passwd. for Posthorn\n'));
  assert.ok(zone.includes('\na\\032b\\059c\\010.example. 3600 IN TXT "v"\n'));
});

test('read back, it is what was written, whatever that was', () => {
  const text = fc.string({ unit: anyCharacter, maxLength: 700 });
  fc.assert(
    fc.property(
      fc.array(fc.tuple(fc.string({ unit: anyCharacter, minLength: 1 }), text), { maxLength: 4 }),
      (pairs) => {
        const given = pairs.map(([name, value]) => textRecord(value, name));
        const zone = writeZone('example.com', given);
        assert.match(zone, /^[\x20-\x7e\n]*$/);
        const expected = given.map(({ name, value }) => ({
          name: Buffer.from(name.replace(/\.$/, '')),
          value: Buffer.from(value),
        }));
        assert.deepEqual(readZone(zone), expected);
      },
    ),
  );
});

/** A reader of the little of RFC 1035 §5.1 that is used. */
function readZone(zone: string): { name: Buffer; value: Buffer }[] {
  const lines = zone.split('\n').filter((line) => line !== '' && !line.startsWith(';'));
  return lines.map((line) => {
    const [, name = '', data = ''] = /^(\S*)\. 3600 IN TXT (.*)$/.exec(line) ?? assert.fail(line);
    const strings = [...data.matchAll(/"((?:[^"\\]|\\\d{3})*)"/g)].map(([, string = '']) =>
      readBytes(string),
    );
    assert.ok(strings.every((string) => string.length <= 255));
    return { name: readBytes(name), value: Buffer.concat(strings) };
  });
}

function readBytes(text: string): Buffer {
  const characters = [...text.matchAll(/\\(\d{3})|(.)/g)];
  return Buffer.from(characters.map(([, code, plain = '']) => (code ? Number(code) : plain.charCodeAt(0))));
}
