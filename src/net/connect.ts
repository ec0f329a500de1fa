/**
 * One connection to a host: resolve, check, TCP, TLS.
 * Guarantee: it goes to an address that egress handed out for this very connection, and for https the other side has
 * proved that name (or literal address). It knows what it is waiting for, so that a failure has its code.
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
  /** A name without a dot at its end, or a literal address without brackets. */
  hostname: string;
  port: number;
  /** Null for plain http. */
  secure: tls.SecureContext | null;
}

export interface Connecting {
  /** Time is up: `done` gets the fault of the phase that it is in. */
  expire(): void;
}

/** Calls `done` once, with a fault or with a connected (and secured) socket. */
export function connect(
  target: ConnectTarget,
  egress: Egress,
  done: (fault: ConnectError | null, socket: net.Socket | null) => void,
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
    finish(describe(error));
  }

  function onClose(): void {
    finish(describe(new Error('The connection was closed')));
  }

  function describe(error: Error): ConnectError {
    if (phase === 'securing') return new ConnectError('tls_failed', describeSocketError(error));
    const timedOut = (error as NodeJS.ErrnoException).code === 'ETIMEDOUT';
    return new ConnectError(timedOut ? 'connect_timeout' : 'connect_failed', describeSocketError(error));
  }

  function finish(fault: ConnectError | null): void {
    if (phase === 'over') return;
    phase = 'over';
    socket
      ?.off('error', onError)
      .off('close', onClose)
      .off('connect', onConnect)
      .off('secureConnect', onSecure);
    if (fault) socket?.on('error', () => {}).destroy();
    done(fault, fault ? null : socket);
  }

  egress.resolve(target.hostname).then((resolution) => {
    if (phase !== 'resolving') return;
    if (!resolution.ok) return finish(new ConnectError(resolution.code, resolution.reason));
    try {
      open(resolution.addresses);
    } catch (error) {
      finish(describe(error as Error));
    }
  });

  return {
    expire() {
      if (phase === 'resolving') finish(new ConnectError('dns_failed', 'No answer from DNS came in time'));
      else if (phase === 'connecting') finish(new ConnectError('connect_timeout', 'No connection in time'));
      else finish(new ConnectError('tls_timeout', 'Connected, but the TLS handshake did not end in time'));
    },
  };
}

function openSocket({ hostname, port, secure }: ConnectTarget, addresses: TargetAddress[]): net.Socket {
  const [first] = addresses;
  // Goes on to the next address when one fails or stays silent for a moment. In the end the first once more, with all the time
  // that is left: a packet that was lost is sent again after a second.
  const inTurn = first && addresses.length > 1 ? [...addresses, first] : addresses;
  // Asked for whatever is not a literal; a literal is itself the address that was checked.
  const lookup: LookupFunction = (_hostname, { all }, answer) =>
    all ? answer(null, inTurn) : answer(null, first?.address ?? '', first?.family);
  const multiple = { autoSelectFamily: true, autoSelectFamilyAttemptTimeout: 500 };
  const options = { host: hostname, port, lookup, ...multiple };
  if (!secure) return net.connect(options);
  return tls.connect({
    ...options,
    secureContext: secure,
    ALPNProtocols: ['http/1.1'],
    // SNI is for names only (RFC 6066 section 3); a literal is checked against the addresses in the certificate.
    ...(net.isIP(hostname) === 0 ? { servername: hostname } : {}),
  });
}

/** What an error of a socket says to a person. That of OpenSSL has its gist in `reason`. */
export function describeSocketError(error: Error & { reason?: string }): string {
  const errors: { reason?: string; message: string }[] =
    error instanceof AggregateError ? error.errors : [error];
  return errors.map(({ reason, message }) => reason ?? message).join('; ');
}
