/**
 * The ways out for mail: one of the identity's own (its SMTP account or provider), or the operator's way: to the recipient's own server, to a relay, or nowhere
 * (development).
 */
import type { DnsClient } from '../net/dns.ts';
import type { Egress } from '../net/egress.ts';
import type { MtaSts } from '../net/mta-sts.ts';
import { resolveOperatorHost } from '../net/operator-host.ts';
import type { AccountServers, OwnRef } from './account-servers.ts';
import { captureMail } from './capture.ts';
import { Connections } from './connections.ts';
import { DeadDestinations } from './dead-destinations.ts';
import type { Tried } from './decide.ts';
import { findDirectServers } from './direct.ts';
import { type OutgoingMail, toAsciiDomain } from './outgoing-mail.ts';
import { makeTlsContexts, type Server, standardTimeouts } from './transmit.ts';

export interface Way {
  kind: 'direct' | 'relay' | 'account' | 'provider' | 'capture';
  /** An account or a provider: the author is the sender of the envelope. */
  isOwn: boolean;
  /** What the mail to this address waits for: the domain, the relay, the account or the provider. */
  destinationOf(address: string): string;
  /** Never rejects. */
  send(mail: OutgoingMail, signal: AbortSignal): Promise<Tried>;
  /** Ends idle connections. */
  close(): void;
}

export interface Ways {
  operator: Way;
  /** By the SMTP account or the provider that the identity sends through. Both null: the operator's way. */
  choose(sender: { ownerId: string; accountId: string | null; providerId: string | null }): Way;
  close(): void;
}

/** Capture is for all mail: nothing leaves the machine, not even through accounts and providers. */
export function makeWays(operator: Way, accounts: AccountServers): Ways {
  const makeOwn = (kind: 'account' | 'provider', id: string, ref: OwnRef): Way => ({
    ...{ kind, isOwn: true, destinationOf: () => `${kind} ${id}` },
    send: (mail, signal) => accounts.send(ref, mail, signal),
    close() {},
  });
  return {
    operator,
    choose({ ownerId, accountId, providerId }) {
      if (operator.kind === 'capture') return operator;
      if (accountId !== null) return makeOwn('account', accountId, { ownerId, accountId });
      return providerId === null ? operator : makeOwn('provider', providerId, { ownerId, providerId });
    },
    close() {
      operator.close();
      accounts.close();
    },
  };
}

interface WayParts {
  outbound: Exclude<Way['kind'], 'account' | 'provider'>;
  relay: Server | null;
  heloName: string;
  mxPort: number;
  dns: DnsClient;
  mtaSts: MtaSts;
  egress: Egress;
  timeouts?: typeof standardTimeouts;
  /** Certificate authorities (PEM) instead of the well-known ones. */
  ca?: string | undefined;
  slowMs?: number;
}

export function makeWay(parts: WayParts): Way {
  const { outbound, relay } = parts;
  if (outbound === 'capture') return makeCapture(parts);
  return outbound === 'relay' && relay ? makeRelay(parts, relay) : makeDirect(parts);
}

function makeCapture({ slowMs }: WayParts): Way {
  const options = slowMs === undefined ? {} : { slowMs };
  return {
    kind: 'capture',
    isOwn: false,
    // By domain, so that `slow.test` delays no other mail.
    destinationOf: domainOf,
    send: (mail, signal) => captureMail(mail.rcptTo, { signal, ...options }),
    close() {},
  };
}

function makeRelay(parts: WayParts, relay: Server): Way {
  const connections = openConnections(parts, resolveOperatorHost, new DeadDestinations());
  return {
    kind: 'relay',
    isOwn: false,
    destinationOf: () => 'relay',
    send: (mail, signal) => connections.send([relay], mail, signal),
    close: () => connections.close(),
  };
}

function makeDirect(parts: WayParts): Way {
  const { dns, mtaSts, egress, mxPort: port } = parts;
  const connections = openConnections(parts, (host) => egress.resolve(host), new DeadDestinations());
  return {
    kind: 'direct',
    isOwn: false,
    destinationOf: domainOf,
    async send(mail, signal) {
      const found = await findDirectServers(domainOf(mail.rcptTo), {
        dns,
        mtaSts,
        random: Math.random,
        signal,
        port,
      });
      return found.kind === 'servers' ? connections.send(found.servers, mail, signal) : found;
    },
    close: () => connections.close(),
  };
}

function openConnections(
  { heloName, timeouts = standardTimeouts, ca }: WayParts,
  resolve: Egress['resolve'],
  dead: DeadDestinations,
): Connections {
  const contexts = makeTlsContexts(ca);
  return new Connections({ resolve, heloName, contexts, timeouts, dead });
}

function domainOf(address: string): string {
  return toAsciiDomain(address)
    .slice(address.lastIndexOf('@') + 1)
    .toLowerCase();
}
