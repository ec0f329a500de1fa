/**
 * Opens one connection: DNS, egress check, TCP, TLS. Guarantee: the socket is connected to an address that egress allowed for this
 * connection, and with https the certificate is valid for the host name or IP address.
 */
import net, { type LookupFunction } from 'node:net';
import tls from 'node:tls';
import type { Egress, TargetAddress } from './egress.ts';

export type ConnectErrorCode =
  | 'dns_failed'
  | 'target_refused'
  | 'connect_failed'
  | 'connect_timeout'
  | 'tls_failed'
  | 'tls_timeout';

export class ConnectError extends Error {
  readonly code: ConnectErrorCode;
  constructor(code: ConnectErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}

type Phase = 'resolving' | 'connecting' | 'securing' | 'over';

interface ConnectTarget {
  /** A name without a dot at its end, or an IP address without brackets. */
  hostname: string;
  port: number;
  /** Null for plain http. */
  secure: tls.SecureContext | null;
}

export interface Connecting {
  /** After a timeout: `done` gets the error code of the current phase. */
  expire(): void;
}

/** Calls `done` once, with an error or with a connected socket. */
export function connect(
  target: ConnectTarget,
  egress: Egress,
  done: (error: ConnectError | null, socket: net.Socket | null) => void,
): Connecting {
  let phase: Phase = 'resolving';
  let socket: net.Socket | null = null;

  function open(addresses: TargetAddress[]): void {
    phase = 'connecting';
    socket = openSocket(target, addresses).setNoDelay(true).setKeepAlive(true, 60_000);
    socket.on('error', onError).on('close', onClose).on('connect', onConnect).on('secureConnect', onSecure);
  }

  function onConnect(): void {
    if (target.secure) phase = 'securing';
    else finish(null);
  }

  function onSecure(): void {
    finish(null);
  }

  function onError(error: Error): void {
    finish(toConnectError(error));
  }

  function onClose(): void {
    finish(toConnectError(new Error('The connection was closed')));
  }

  function toConnectError(error: Error): ConnectError {
    if (phase === 'securing') return new ConnectError('tls_failed', describeSocketError(error));
    const timedOut = (error as NodeJS.ErrnoException).code === 'ETIMEDOUT';
    return new ConnectError(timedOut ? 'connect_timeout' : 'connect_failed', describeSocketError(error));
  }

  function finish(error: ConnectError | null): void {
    if (phase === 'over') return;
    phase = 'over';
    socket
      ?.off('error', onError)
      .off('close', onClose)
      .off('connect', onConnect)
      .off('secureConnect', onSecure);
    if (error) socket?.on('error', () => {}).destroy();
    done(error, error ? null : socket);
  }

  egress.resolve(target.hostname).then((resolution) => {
    if (phase !== 'resolving') return;
    if (!resolution.ok) return finish(new ConnectError(resolution.code, resolution.reason));
    try {
      open(resolution.addresses);
    } catch (error) {
      finish(toConnectError(error as Error));
    }
  });

  return {
    expire() {
      if (phase === 'resolving') finish(new ConnectError('dns_failed', 'DNS did not answer in time'));
      else if (phase === 'connecting')
        finish(new ConnectError('connect_timeout', 'The host did not accept the connection in time'));
      else finish(new ConnectError('tls_timeout', 'The TLS handshake did not finish in time'));
    },
  };
}

/** `hostname` is what the certificate is checked for; `addresses` are what is called, one after the other. */
export function openSocket(
  { hostname, port, secure }: ConnectTarget,
  addresses: TargetAddress[],
): net.Socket {
  const [first] = addresses;
  // Node tries the next address after 500 ms. The first address is tried again at the end, with all the time that is left: TCP
  // resends a lost packet only after a second.
  const attempts = first && addresses.length > 1 ? [...addresses, first] : addresses;
  // Node does not call this for an IP address, which egress has checked as it is.
  const lookup: LookupFunction = (_hostname, { all }, answer) =>
    all ? answer(null, attempts) : answer(null, first?.address ?? '', first?.family);
  const multiple = { autoSelectFamily: true, autoSelectFamilyAttemptTimeout: 500 };
  const options = { host: hostname, port, lookup, ...multiple };
  if (!secure) return net.connect(options);
  return tls.connect({
    ...options,
    secureContext: secure,
    ALPNProtocols: ['http/1.1'],
    // SNI is for names only (RFC 6066 §3). An IP address is checked against the addresses in the certificate.
    ...(net.isIP(hostname) === 0 ? { servername: hostname } : {}),
  });
}

/** Node begins the message of a failed system call with its name: `connect ECONNREFUSED 127.0.0.1:4000`. */
const systemCall = /^[a-z]+ (?=E[A-Z]+\b)/;

/** OpenSSL puts the readable part into `reason`. */
export function describeSocketError(error: Error & { reason?: string }): string {
  const errors: { reason?: string; message: string }[] =
    error instanceof AggregateError ? error.errors : [error];
  return errors.map(({ reason, message }) => reason ?? message.replace(systemCall, '')).join('; ');
}
