/**
 * Writes DNS records in zone file format (RFC 1035 §5.1). Pure.
 * Guarantee: only printable ASCII and line ends, absolute names, no string over 255 bytes; parsing gives the same records.
 */
import type { DnsRecord } from '../contract/identity.ts';

const titles: Record<DnsRecord['purpose'], string> = {
  ownership: 'Ownership: proves that you own the domain',
  mx: 'Incoming mail',
  spf: 'SPF: replaces the SPF record of the domain, if there is one',
  dkim: 'DKIM: the public key that receivers verify signatures with',
  dmarc: 'DMARC: replaces the DMARC record of the domain, if there is one',
};
const maxString = 255;

export function writeZone(domain: string, records: readonly DnsRecord[]): string {
  const lines = records.flatMap((record) => [
    '',
    `; ${titles[record.purpose]} (${record.required ? 'required' : 'recommended'})`,
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

/** Without the dot at the end, the name server would append the zone's name. */
function writeName(name: string): string {
  return `${escapeBytes(Buffer.from(name.replace(/\.$/, '')), /[\w.-]/)}.`;
}

/** `\DDD` is the escape that every name server reads in the same way. */
function escapeBytes(bytes: Uint8Array, plain: RegExp): string {
  return Array.from(bytes, (byte) => {
    const character = String.fromCharCode(byte);
    return byte < 128 && plain.test(character) ? character : `\\${String(byte).padStart(3, '0')}`;
  }).join('');
}
