/**
 * Resolves a host that the operator configured, such as a relay. Unlike egress.ts it asks the operating system, so that /etc/hosts
 * and names without a dot work (a service in the same Docker network), and it refuses nothing: the operator may call any address.
 */
import { lookup } from 'node:dns/promises';
import type { Resolution } from './egress.ts';

export async function resolveOperatorHost(host: string): Promise<Resolution> {
  try {
    const found = await lookup(host, { all: true, order: 'ipv4first' });
    const addresses = found.map(
      ({ address, family }) => ({ address, family: family === 6 ? 6 : 4 }) as const,
    );
    return { ok: true, addresses };
  } catch (error) {
    const reason = `${host} could not be resolved: ${(error as Error).message}.`;
    return { ok: false, code: 'dns_failed', reason, isAbsent: false };
  }
}
