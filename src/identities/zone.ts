/**
 * DNS records as a zone file has them (RFC 1035 §5.1), to be pasted into one. Pure.
 * Guarantee: printable ASCII and line ends only, absolute names, no string over 255 bytes; parsing it gives the records back.
 */
import type { DnsRecord } from '../contract/identity.ts';

const titles: Record<DnsRecord['purpose'], string> = {
  ownership: 'Ownership: proves that the domain is yours',
  mx: 'Incoming mail',
  spf: 'SPF: put it in the place of the SPF record that is there, if one is',
  dkim: 'DKIM: the key that signatures are checked with',
  dmarc: 'DMARC: put it in the place of the DMARC record that is there, if one is',
};
const maxString = 255;

export function writeZone(domain: string, records: readonly DnsRecord[]): string {
  const lines = records.flatMap((record) => [
    '',
    `; ${titles[record.purpose]} (${record.required ? 'required' : 'advised'})`,
    [writeName(record.name), record.ttl, 'IN', record.type, writeData(record)].join(' '),
  ]);
  return `${[`; DNS records of ${writeName(domain)} for Posthorn`, ...lines].join('\n')}\n`;
}

function writeData({ type, priority = 10, value }: DnsRecord): string {
  return type === 'MX' ? `${priority} ${writeName(value)}` : writeStrings(value);
}

function writeStrings(value: string): string {
  const bytes = Buffer.from(value);
  const count = Math.max(1, Math.ceil(bytes.length / maxString));
  return Array.from({ length: count }, (_, index) => {
    const string = bytes.subarray(index * maxString, (index + 1) * maxString);
    return `"${escapeBytes(string, /[ !#-[\]-~]/)}"`;
  }).join(' ');
}

/** The dot at the end makes it absolute: without, the zone's own name would be added. */
function writeName(name: string): string {
  return `${escapeBytes(Buffer.from(name.replace(/\.$/, '')), /[\w.-]/)}.`;
}

/** What is not plain as `\DDD`, the one escape that every server reads alike. */
function escapeBytes(bytes: Uint8Array, plain: RegExp): string {
  return Array.from(bytes, (byte) => {
    const character = String.fromCharCode(byte);
    return byte < 128 && plain.test(character) ? character : `\\${String(byte).padStart(3, '0')}`;
  }).join('');
}
