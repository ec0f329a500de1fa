/**
 * Classifies IP addresses. Pure. Guarantee: an address is `public` only if it is global unicast by the IANA registries of
 * special-purpose addresses (IPv6: inside 2000::/3), and so is an IPv4 address that it contains.
 */
import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

type Parsed = ipaddr.IPv4 | ipaddr.IPv6;
export type AddressRange = [Parsed, number];

/** Messages put these names after "which is". The first match counts. */
const kinds: [string, readonly string[]][] = [
  // 168.63.129.16 is a public address that answers only inside Azure.
  [
    "a cloud's metadata address",
    ['169.254.169.254/32', '168.63.129.16/32', '100.100.100.200/32', '192.0.0.192/32', 'fd00:ec2::254/128'],
  ],
  ['a loopback address', ['127.0.0.0/8', '::1/128']],
  ['a private address', ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7', 'fec0::/10']],
  ['a link-local address', ['169.254.0.0/16', 'fe80::/10']],
  ['a shared address (carrier-grade NAT)', ['100.64.0.0/10']],
  ['a multicast address', ['224.0.0.0/4', 'ff00::/8']],
  ['an unspecified address', ['0.0.0.0/8', '::/128']],
  ['the broadcast address', ['255.255.255.255/32']],
  [
    'a documentation address',
    ['192.0.2.0/24', '198.51.100.0/24', '203.0.113.0/24', '2001:db8::/32', '3fff::/20'],
  ],
  ['a benchmarking address', ['198.18.0.0/15', '2001:2::/48']],
  ['a Teredo address', ['2001::/32']],
  ['an address without a host behind it', ['100::/64', '100:0:0:1::/64', '2001:10::/28', '2001:20::/27']],
  ['a relay or sink address', ['192.88.99.0/24', '192.31.196.0/24', '192.52.193.0/24', '192.175.48.0/24']],
  ['a relay or sink address', ['2001:4:112::/48', '2620:4f:8000::/48']],
  ['a locally translated address (NAT64)', ['64:ff9b:1::/48']],
  // 2001::/23 is for protocols. The other IPv6 ranges are everything outside 2000::/3.
  [
    'a reserved address',
    ['192.0.0.0/24', '240.0.0.0/4', '2001::/23', '::/3', '4000::/3', '6000::/3', '8000::/1'],
  ],
];

const table = kinds.map(([kind, ranges]): [string, AddressRange[]] => [
  kind,
  ranges.map((range) => ipaddr.parseCIDR(range)),
]);
const nat64 = ipaddr.parseCIDR('64:ff9b::/96');
const sixToFour = ipaddr.parseCIDR('2002::/16');

/** A single address is a range of one. */
export function parseRange(text: string): AddressRange {
  const [, start = '', length] = /^([^/]+)(?:\/(\d{1,3}))?$/.exec(text) ?? [];
  const most = isIP(start) === 4 ? 32 : 128;
  const bits = Number(length ?? most);
  if (isIP(start) === 0 || bits > most)
    throw new Error(`"${text}" is not an address range such as 10.0.0.0/8`);
  return [ipaddr.parse(start), bits];
}

export function isWithin(text: string, ranges: readonly AddressRange[]): boolean {
  const address = parse(text);
  return address !== null && ranges.some((range) => matches(address, range));
}

/** `public`, or a name such as "a private address". */
export function classify(text: string): string {
  const address = parse(text);
  return address === null ? 'not an address' : classifyParsed(address);
}

/** The name whose PTR record names an address (RFC 1035 §3.5, RFC 3596 §2.5). */
export function reverseName(text: string): string {
  const address = parse(text);
  const bytes = address?.toByteArray() ?? [];
  if (address?.kind() === 'ipv4') return `${bytes.reverse().join('.')}.in-addr.arpa`;
  const digits = Buffer.from(bytes).toString('hex').split('').reverse();
  return `${digits.join('.')}.ip6.arpa`;
}

function classifyParsed(address: Parsed): string {
  const inner = address.kind() === 'ipv6' ? findEmbedded(address as ipaddr.IPv6) : null;
  if (inner) {
    const kind = classifyParsed(inner);
    if (kind !== 'public') return `${kind} (${inner}) in IPv6 form`;
    if (matches(address, nat64)) return 'public';
  }
  return table.find(([, ranges]) => ranges.some((range) => matches(address, range)))?.[0] ?? 'public';
}

/** The IPv4 address that a packet to this IPv6 address may be translated to. */
function findEmbedded(address: ipaddr.IPv6): ipaddr.IPv4 | null {
  const bytes = address.toByteArray();
  // RFC 6052: in an IPv6-only network with DNS64 every IPv4 host has such an address.
  if (matches(address, nat64)) return new ipaddr.IPv4(bytes.slice(12));
  if (matches(address, sixToFour)) return new ipaddr.IPv4(bytes.slice(2, 6));
  // ISATAP, RFC 5214 §6.1: the interface id is [02]00:5efe and the IPv4 address, under any prefix.
  const [, , , , group4 = 0, group5] = address.parts;
  if ((group4 & 0xfdff) === 0 && group5 === 0x5efe) return new ipaddr.IPv4(bytes.slice(12));
  return null;
}

function parse(text: string): Parsed | null {
  const family = isIP(text);
  if (family === 0) return null;
  if (family === 4) return ipaddr.IPv4.parse(text);
  // ipaddr.js reads `::8.8.8.8` as `::ffff:8.8.8.8`; the URL parser turns the dots into hexadecimal.
  const address = ipaddr.IPv6.parse(new URL(`http://[${text.replace(/%.*/, '')}]`).hostname.slice(1, -1));
  // For a mapped address the system connects to the IPv4 address.
  return address.isIPv4MappedAddress() ? address.toIPv4Address() : address;
}

function matches(address: Parsed, [network, bits]: AddressRange): boolean {
  return address.kind() === network.kind() && address.match(network, bits);
}
