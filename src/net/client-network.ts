/** What clients are counted by: the IPv4 address, or the /64 of the IPv6 address, because one customer usually has a whole /64. */
import { isIPv6 } from 'node:net';

export function clientNetwork(remoteIp: string): string {
  if (!isIPv6(remoteIp)) return remoteIp;
  // A dual-stack listener sees the IPv4 address in this form.
  const [, mapped] = /^::ffff:(\d+\.[\d.]+)$/i.exec(remoteIp) ?? [];
  if (mapped !== undefined) return mapped;
  const [head = '', tail] = remoteIp.split('%')[0]?.split('::') ?? [];
  const first = head === '' ? [] : head.split(':');
  const last = tail ? tail.split(':') : [];
  const zeros = tail === undefined ? 0 : 8 - first.length - last.length;
  return [...first, ...Array<string>(zeros).fill('0'), ...last].slice(0, 4).join(':');
}
