/**
 * The SMTP listener: counts connections, shares memory among clients, and lets messages finish when it stops.
 *
 * Built on node:net and node:tls. The smtp-server package keeps private what we need to change: the end of data and
 * dot-stuffing after a bare LF, enhanced codes, separate timeouts, error counting, unchanged addresses, and no fixed wait
 * of 100 ms before the greeting.
 */
import net, { type AddressInfo, type Socket } from 'node:net';
import { once } from '../lib/once.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { Slots } from '../lib/slots.ts';
import { type CertificateFiles, openCertificate } from '../net/certificate.ts';
import { clientNetwork } from '../net/client-network.ts';
import { describeListenError } from '../net/listen-error.ts';
import { Connection, type ConnectionParts } from './connection.ts';
import { Budget, openSpoolFolder, type SpoolFolder } from './spool.ts';

export interface SmtpParts<Route = unknown>
  extends Omit<ConnectionParts<Route>, 'certificate' | 'room' | 'loading'> {
  host: string;
  /** 0: any free port. */
  port: number;
  /** The setting to change if the port is in use. */
  portSetting?: string;
  /** Null: a self-signed certificate, made at start. */
  tls: CertificateFiles | null;
  /** For the temporary files of large messages. */
  spoolFolder: string;
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
  const { limits, log, metrics, mailHost, ownerOf, route, accept, stopWithinMs = 5000 } = parts;
  const certificate = await openCertificate({
    files: parts.tls,
    mailHost,
    log,
    onExpiry: metrics && ((expiry) => metrics.certificateExpires(expiry)),
    ...(parts.certificateRecheckMs === undefined ? {} : { recheckMs: parts.certificateRecheckMs }),
  });
  const spool = await openSpool(parts.spoolFolder);
  const memory = new Budget(limits.maxBytesUnderWay / 2);
  const loading = new Slots({ inAll: limits.maxBytesUnderWay / 2, perOwner: limits.maxBytesUnderWay / 4 });
  // One message of any allowed size must fit, and two of each client.
  const disk = new Budget(Math.max(limits.maxSpoolBytes, 2 * limits.maxMessageBytes));
  const clientDiskBytes = Math.max(disk.limit / 4, 2 * limits.maxMessageBytes);
  const { openMailLog, submission, isTlsFromStart } = parts;
  const connectionParts = {
    ...{ mailHost, limits, certificate, loading, ownerOf },
    ...{ route, accept, log, metrics, openMailLog, submission, isTlsFromStart },
  };
  const connections = new Map<Connection<Route>, Client>();
  const clients = new Map<string, Client>();
  let onLastEnded = () => {};

  function onConnection(socket: Socket): void {
    const remoteIp = (socket.remoteAddress ?? '').replace(/^::ffff:(?=\d+\.)/i, '');
    const key = clientNetwork(remoteIp);
    const client = clients.get(key) ?? makeClient();
    const isFull =
      client.count >= limits.maxConnectionsPerAddress || connections.size >= limits.maxConnections;
    if (remoteIp === '' || isFull) {
      refuse(socket, remoteIp);
      return;
    }
    client.count += 1;
    clients.set(key, client);
    const room = {
      maxBytes: limits.maxMessageBytes,
      inMemoryBytes: limits.inMemoryBytes,
      memory: client.memory,
      disk: {
        take: (bytes: number) => takeDisk(bytes, client, connection),
        giveBack: (bytes: number) => client.disk.giveBack(bytes),
        open: () => spool.openFile(),
      },
    };
    const connection: Connection<Route> = new Connection(
      socket,
      remoteIp,
      { ...connectionParts, room },
      () => {
        connections.delete(connection);
        client.count -= 1;
        if (client.count === 0) clients.delete(key);
        metrics?.connections(connections.size);
        if (connections.size === 0) onLastEnded();
      },
    );
    connections.set(connection, client);
    metrics?.connections(connections.size);
  }

  /** Each client gets a part of the room: a client that sends slowly on purpose must not block the others. */
  function makeClient(): Client {
    return {
      count: 0,
      memory: new Budget(memory.limit / 4, memory),
      disk: new Budget(clientDiskBytes, disk),
    };
  }

  /** Closes slow connections until there is room: those of the same client if its part is used up, else any. */
  function takeDisk(bytes: number, client: Client, asking: Connection<Route>): boolean {
    while (!client.disk.take(bytes)) {
      const isOwnPartUsedUp = !client.disk.fits(bytes);
      const slowest = findSlowest((other) => !isOwnPartUsedUp || other === client);
      // A connection that is the slowest itself gets no room.
      if (!slowest || slowest === asking) return false;
      slowest.cut();
    }
    return true;
  }

  function findSlowest(isCandidate: (client: Client) => boolean): Connection<Route> | undefined {
    const now = performance.now();
    const slow = [...connections]
      .filter(([, client]) => isCandidate(client))
      .map(([connection]) => ({ connection, slownessMs: connection.slownessMs(now) }))
      .filter(({ slownessMs }) => slownessMs > limits.slowAfterMs);
    return slow.sort((one, other) => other.slownessMs - one.slownessMs)[0]?.connection;
  }

  function refuse(socket: Socket, remoteIp: string): void {
    metrics?.connectionRefused();
    openMailLog?.(remoteIp).refused({ reason: 'too_many_connections', status: 421 });
    socket.on('error', () => {});
    // A client that waits for a TLS handshake cannot read a reply.
    if (isTlsFromStart) socket.end();
    else socket.end(`421 ${mailHost} Too many connections; please try again later\r\n`);
    socket.destroySoon();
  }

  const server = net.createServer({ allowHalfOpen: true, noDelay: true }, onConnection);
  await listen(server, parts).catch(async (error) => {
    await spool.close();
    throw error;
  });
  server.on('error', (err) => log.error({ err }, 'The SMTP listener failed'));

  async function stop(): Promise<void> {
    server.close();
    const ended = new Promise<void>((resolve) => {
      onLastEnded = resolve;
    });
    for (const connection of connections.keys()) connection.stop();
    if (connections.size > 0) {
      const timer = setTimeout(() => {
        for (const connection of connections.keys()) connection.destroy();
        onLastEnded();
      }, stopWithinMs);
      await ended;
      clearTimeout(timer);
    }
    await spool.close();
  }

  return { port: (server.address() as AddressInfo).port, stop: once(stop) };
}

/** What the connections from one address use. */
interface Client {
  count: number;
  memory: Budget;
  disk: Budget;
}

async function openSpool(folder: string): Promise<SpoolFolder> {
  try {
    return await openSpoolFolder(folder);
  } catch (cause) {
    const message =
      `The SMTP server cannot write temporary files in ${folder}: ${(cause as Error).message}.\n` +
      'Make the folder writable, or set TMPDIR to another folder.';
    throw new OperatorError(message, { cause });
  }
}

function listen(
  server: net.Server,
  { host, port, portSetting = 'POSTHORN_SMTP_PORT' }: Pick<SmtpParts, 'host' | 'port' | 'portSetting'>,
): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (cause: NodeJS.ErrnoException) => {
      const listener = { host, port, hostSetting: 'POSTHORN_SMTP_HOST', portSetting };
      const other = `The SMTP server cannot listen on ${host}, port ${port} (${portSetting}): ${cause.message}.`;
      reject(new OperatorError(describeListenError(cause.code, listener) ?? other, { cause }));
    });
    server.listen({ host, port, backlog: 511 }, () => {
      server.removeAllListeners('error');
      resolve();
    });
  });
}
