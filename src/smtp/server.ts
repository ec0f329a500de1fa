/**
 * The SMTP listener: counts connections, shares memory among clients, and lets messages finish when it stops.
 *
 * Built on node:net and node:tls. The smtp-server package keeps private what we need to change: the end of data and
 * dot-stuffing after a bare LF, enhanced codes, separate timeouts, error counting, unchanged addresses, and no fixed wait
 * of 100 ms before the greeting.
 */
import net, { type AddressInfo, isIPv6, type Socket } from 'node:net';
import { once } from '../lib/once.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { type CertificateFiles, openCertificate } from '../net/certificate.ts';
import { Connection, type ConnectionParts } from './connection.ts';
import { Budget } from './data.ts';

export interface SmtpParts<Route = unknown> extends Omit<ConnectionParts<Route>, 'certificate' | 'budget'> {
  host: string;
  /** 0: any free port. */
  port: number;
  /** Null: a self-signed certificate, made at start. */
  tls: CertificateFiles | null;
  /** The shortest time between two checks of the certificate files. */
  certificateRecheckMs?: number;
  /** How long `stop` waits for messages that are being sent or accepted. */
  stopWithinMs?: number;
}

export interface SmtpServer {
  port: number;
  /** Accepts no new connections. Messages that are being sent or accepted may finish; every other client gets 421. */
  stop(): Promise<void>;
}

export async function startSmtpServer<Route>(parts: SmtpParts<Route>): Promise<SmtpServer> {
  const { limits, log, metrics, mailHost, route, accept, stopWithinMs = 5000 } = parts;
  const certificate = await openCertificate({
    files: parts.tls,
    mailHost,
    log,
    onExpiry: metrics && ((expiry) => metrics.certificateExpires(expiry)),
    ...(parts.certificateRecheckMs === undefined ? {} : { recheckMs: parts.certificateRecheckMs }),
  });
  // One message of any allowed size must fit.
  const budget = new Budget(Math.max(limits.maxBytesUnderWay, 2 * limits.maxMessageBytes));
  // Each client gets a part of it, at least two messages: a client that sends slowly on purpose must not block the others.
  const clientBytes = Math.max(budget.limit / 4, 2 * (limits.maxMessageBytes + 2));
  const { openMailLog } = parts;
  const connectionParts = { mailHost, limits, certificate, route, accept, log, metrics, openMailLog };
  const connections = new Set<Connection<Route>>();
  const clients = new Map<string, { count: number; budget: Budget }>();
  let onLastEnded = () => {};

  function onConnection(socket: Socket): void {
    const remoteIp = (socket.remoteAddress ?? '').replace(/^::ffff:(?=\d+\.)/i, '');
    const key = clientKey(remoteIp);
    const client = clients.get(key) ?? { count: 0, budget: new Budget(clientBytes, budget) };
    const isFull =
      client.count >= limits.maxConnectionsPerAddress || connections.size >= limits.maxConnections;
    if (remoteIp === '' || isFull) {
      refuse(socket, remoteIp);
      return;
    }
    client.count += 1;
    clients.set(key, client);
    const connection = new Connection(socket, remoteIp, { ...connectionParts, budget: client.budget }, () => {
      connections.delete(connection);
      client.count -= 1;
      if (client.count === 0) clients.delete(key);
      metrics?.connections(connections.size);
      if (connections.size === 0) onLastEnded();
    });
    connections.add(connection);
    metrics?.connections(connections.size);
  }

  function refuse(socket: Socket, remoteIp: string): void {
    metrics?.connectionRefused();
    openMailLog?.(remoteIp).refused({ reason: 'too_many_connections', status: 421 });
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
      onLastEnded = resolve;
    });
    for (const connection of connections) connection.stop();
    if (connections.size === 0) return;
    const timer = setTimeout(() => {
      for (const connection of connections) connection.destroy();
      onLastEnded();
    }, stopWithinMs);
    await ended;
    clearTimeout(timer);
  }

  return { port: (server.address() as AddressInfo).port, stop: once(stop) };
}

function listen(server: net.Server, { host, port }: { host: string; port: number }): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (cause) => {
      const message =
        `The SMTP server cannot listen on ${host}, port ${port}: ${cause.message}.\n` +
        'Stop the program that uses the port, or set POSTHORN_SMTP_PORT or POSTHORN_SMTP_HOST to another value.';
      reject(new OperatorError(message, { cause }));
    });
    server.listen({ host, port, backlog: 511 }, () => {
      server.removeAllListeners('error');
      resolve();
    });
  });
}

/** What connections are counted by: the IPv4 address, or the /64 of the IPv6 address. */
export function clientKey(remoteIp: string): string {
  if (!isIPv6(remoteIp)) return remoteIp;
  const [head = '', tail] = remoteIp.split('%')[0]?.split('::') ?? [];
  const first = head === '' ? [] : head.split(':');
  const last = tail ? tail.split(':') : [];
  const zeros = tail === undefined ? 0 : 8 - first.length - last.length;
  return [...first, ...Array<string>(zeros).fill('0'), ...last].slice(0, 4).join(':');
}
