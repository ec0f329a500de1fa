/**
 * The MX door: listens for SMTP, counts connections, and stops without breaking off what it can finish.
 *
 * On node:net and node:tls, not on the smtp-server package: of that, all we need otherwise is private there (the end of
 * data and dot-stuffing after a bare LF, enhanced codes, one timeout for everything, errors that are not counted,
 * addresses rewritten, a fixed wait of 100 ms before the greeting), so what is left of it is smaller than its patches.
 */
import net, { type AddressInfo, isIPv6, type Socket } from 'node:net';
import type { Log } from '../lib/log.ts';
import { once } from '../lib/once.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { type CertificateFiles, openCertificate } from '../net/certificate.ts';
import { type Acceptance, Connection, type ReceivedMail } from './connection.ts';
import { Budget } from './data.ts';
import type { SmtpLimits } from './limits.ts';
import type { SmtpMetrics } from './metrics.ts';
import type { RecipientDecision } from './session.ts';

export interface SmtpParts<Route = unknown> {
  host: string;
  /** 0 for any that is free. */
  port: number;
  /** What we call ourselves. */
  mailHost: string;
  /** Null for a certificate that is made here. */
  tls: CertificateFiles | null;
  limits: SmtpLimits;
  /** Asked for each recipient. */
  route(address: string): Promise<RecipientDecision<Route>>;
  /** Resolves after the commit: the client is told at once. */
  accept(mail: ReceivedMail<Route>): Promise<Acceptance>;
  log: Log;
  metrics?: SmtpMetrics;
  /** How often the certificate's files are looked at, at most. */
  certificateRecheckMs?: number;
  /** How long `stop` waits for messages that are under way. */
  stopWithinMs?: number;
}

export interface SmtpServer {
  port: number;
  /** No new connections; a message that is being sent or accepted may end, all else is told to come back later. */
  stop(): Promise<void>;
}

const standardStopWithinMs = 5000;

export async function startSmtpServer<Route>(parts: SmtpParts<Route>): Promise<SmtpServer> {
  const { limits, log, metrics, mailHost, stopWithinMs = standardStopWithinMs } = parts;
  const certificate = await openCertificate({
    files: parts.tls,
    mailHost,
    log,
    ...(parts.certificateRecheckMs === undefined ? {} : { recheckMs: parts.certificateRecheckMs }),
  });
  // One message of any allowed size must fit.
  const budget = new Budget(Math.max(limits.maxBytesUnderWay, 2 * limits.maxMessageBytes));
  const { route, accept } = parts;
  // For one client a part, though two messages at least: one who sends slowly on purpose must not keep the others out.
  const share = Math.max(budget.limit / 4, 2 * (limits.maxMessageBytes + 2));
  const connectionParts = { mailHost, limits, certificate, route, accept, log, metrics };
  const connections = new Set<Connection<Route>>();
  const clients = new Map<string, { count: number; budget: Budget }>();
  let nothingLeft = () => {};

  function onConnection(socket: Socket): void {
    const remoteIp = (socket.remoteAddress ?? '').replace(/^::ffff:(?=\d+\.)/i, '');
    const client = clientKey(remoteIp);
    const known = clients.get(client) ?? { count: 0, budget: new Budget(share, budget) };
    if (
      remoteIp === '' ||
      known.count >= limits.maxConnectionsPerAddress ||
      connections.size >= limits.maxConnections
    ) {
      refuse(socket);
      return;
    }
    known.count += 1;
    clients.set(client, known);
    const connection = new Connection(socket, remoteIp, { ...connectionParts, budget: known.budget }, () => {
      connections.delete(connection);
      known.count -= 1;
      if (known.count === 0) clients.delete(client);
      metrics?.connections(connections.size);
      if (connections.size === 0) nothingLeft();
    });
    connections.add(connection);
    metrics?.connections(connections.size);
  }

  function refuse(socket: Socket): void {
    metrics?.connectionRefused();
    socket.on('error', () => {});
    socket.end(`421 ${mailHost} Too many connections; please try again later\r\n`);
    socket.destroySoon();
  }

  const server = net.createServer({ allowHalfOpen: true, noDelay: true }, onConnection);
  await listen(server, parts);
  server.on('error', (err) => log.error({ err }, 'The SMTP listener failed'));

  async function stop(): Promise<void> {
    server.close();
    const ended = new Promise<void>((resolve) => {
      nothingLeft = resolve;
    });
    for (const connection of connections) connection.stop();
    if (connections.size === 0) return;
    const patience = setTimeout(() => {
      for (const connection of connections) connection.cut();
      nothingLeft();
    }, stopWithinMs);
    await ended;
    clearTimeout(patience);
  }

  return { port: (server.address() as AddressInfo).port, stop: once(stop) };
}

function listen(server: net.Server, { host, port }: { host: string; port: number }): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (cause) => {
      const message =
        `Mail cannot be taken on port ${port} of ${host}: ${cause.message}.\n` +
        'Stop the program that has it, or set POSTHORN_SMTP_PORT (POSTHORN_SMTP_HOST) to another.';
      reject(new OperatorError(message, { cause }));
    });
    server.listen({ host, port, backlog: 511 }, () => {
      server.removeAllListeners('error');
      resolve();
    });
  });
}

/** What connections are counted by: an IPv4 address, or the /64 of an IPv6 one. */
export function clientKey(remoteIp: string): string {
  if (!isIPv6(remoteIp)) return remoteIp;
  const [head = '', tail] = remoteIp.split('%')[0]?.split('::') ?? [];
  const first = head === '' ? [] : head.split(':');
  const last = tail ? tail.split(':') : [];
  const zeros = tail === undefined ? 0 : 8 - first.length - last.length;
  return [...first, ...Array<string>(zeros).fill('0'), ...last].slice(0, 4).join(':');
}
