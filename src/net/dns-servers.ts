/**
 * DNS servers asked in turn. Guarantee: what one of them fails at, by whatever answer or by silence, the next is asked; an
 * answer, "there is none" included, is the end of it. Node's c-ares by itself takes SERVFAIL or REFUSED of the first for
 * the answer, so each server has a Resolver of its own.
 */
import { getServers, Resolver } from 'node:dns/promises';

/** Not a failure of the server: that there is nothing, that the name cannot be, or that nobody waits any more. */
const finalCodes = new Set(['ENOTFOUND', 'ENODATA', 'EBADNAME', 'ECANCELLED']);

export interface DnsServers {
  /** Rejects with the final word of one, or with the failure of the last. */
  ask<T>(query: (server: Resolver) => Promise<T>): Promise<T>;
  /** Ends all questions that are open. */
  cancel(): void;
}

export function openDnsServers(options: {
  /** Null for those of the system. */
  dnsServers: readonly string[] | null;
  /** How long to wait for each server in the first round, in the second, and so on. */
  roundsMs: readonly number[];
}): DnsServers {
  const addresses = options.dnsServers ?? getServers();
  // Those who fail go to the end: a dead one among good ones costs its silence once.
  const servers = addresses.map((address) => options.roundsMs.map((timeout) => openOne(address, timeout)));

  /** A single one of the system's is left to Node, which reads the settings anew while they lead nowhere. */
  function openOne(address: string, timeout: number): Resolver {
    const resolver = new Resolver({ timeout, tries: 1 });
    if (options.dnsServers || addresses.length > 1) resolver.setServers([address]);
    return resolver;
  }

  return {
    async ask(query) {
      let failure: unknown = Object.assign(new Error('There is no DNS server to ask.'), {
        code: 'ENOSERVER',
      });
      let silent = [...servers];
      for (const round of options.roundsMs.keys()) {
        const asked = silent;
        silent = [];
        for (const server of asked) {
          const resolver = server[round];
          if (!resolver) continue;
          try {
            return await query(resolver);
          } catch (error) {
            const { code = '' } = error as NodeJS.ErrnoException;
            if (finalCodes.has(code)) throw error;
            failure = error;
            if (code === 'ETIMEOUT') silent.push(server);
            servers.push(...servers.splice(servers.indexOf(server), 1));
          }
        }
      }
      throw failure;
    },
    cancel() {
      for (const resolver of servers.flat()) resolver.cancel();
    },
  };
}
