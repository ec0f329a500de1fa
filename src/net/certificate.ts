/**
 * The certificate that STARTTLS shows: the operator's files, looked at again while mail comes in, or one made here.
 * Guarantee: once there is a certificate there is always one; files that do not fit together are logged and left alone
 * until they change again.
 *
 * The files' contents are compared, at most once a second and only when a client asks for TLS. A watcher would follow
 * the old file when certbot moves a symbolic link, or Kubernetes the folder that the link goes through.
 */
import { constants, createPrivateKey, X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import tls from 'node:tls';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { makeSelfSigned } from './self-signed.ts';

export interface CertificateFiles {
  certFile: string;
  keyFile: string;
}

export interface Certificate {
  /** What to show to the next client. */
  context(): Promise<tls.SecureContext>;
}

interface Pair {
  cert: string;
  key: string;
}

const standardRecheckMs = 1000;

/** Throws an OperatorError if the files cannot be used: better at the start than at the first mail. */
export async function openCertificate(options: {
  files: CertificateFiles | null;
  mailHost: string;
  log: Log;
  recheckMs?: number;
}): Promise<Certificate> {
  const { files, mailHost, log, recheckMs = standardRecheckMs } = options;
  return files ? openFiles(files, log, recheckMs) : makeOnDemand(mailHost);
}

/** Made when the first client asks: many an installation never meets one. */
function makeOnDemand(mailHost: string): Certificate {
  let made: tls.SecureContext | null = null;
  return {
    async context() {
      made ??= secure(makeSelfSigned(mailHost, new Date()));
      return made;
    },
  };
}

async function openFiles(files: CertificateFiles, log: Log, recheckMs: number): Promise<Certificate> {
  let current: { pair: Pair; context: tls.SecureContext };
  try {
    const pair = await readPair(files);
    current = { pair, context: secure(pair) };
  } catch (cause) {
    throw new OperatorError(
      `The certificate for SMTP cannot be used: ${(cause as Error).message}. It was read from ${files.certFile}, its key from ${files.keyFile}.`,
      { cause },
    );
  }
  warnIfExpired(current.pair);
  let checkedAt = performance.now();
  let toldFault = '';
  let checking: Promise<void> | null = null;

  async function check(): Promise<void> {
    let seen = '';
    try {
      const pair = await readPair(files);
      seen = pair.cert + pair.key;
      if (seen === current.pair.cert + current.pair.key) return;
      current = { pair, context: secure(pair) };
      toldFault = '';
      log.info({ certFile: files.certFile }, 'The new certificate for SMTP is in use');
      warnIfExpired(pair);
    } catch (err) {
      const fault = `${(err as Error).message} ${seen}`;
      if (fault === toldFault) return;
      toldFault = fault;
      log.error(
        { ...files, reason: (err as Error).message },
        'The new certificate for SMTP cannot be used; the one before stays in use',
      );
    } finally {
      checkedAt = performance.now();
      checking = null;
    }
  }

  function warnIfExpired({ cert }: Pair): void {
    const { validTo, validToDate } = new X509Certificate(cert);
    if (validToDate.getTime() > Date.now()) return;
    log.warn({ certFile: files.certFile, validTo }, 'The certificate for SMTP has expired; renew it');
  }

  return {
    async context() {
      if (performance.now() - checkedAt >= recheckMs) checking ??= check();
      if (checking) await checking;
      return current.context;
    },
  };
}

async function readPair(files: CertificateFiles): Promise<Pair> {
  const [cert, key] = await Promise.all([readFile(files.certFile, 'utf8'), readFile(files.keyFile, 'utf8')]);
  return { cert, key };
}

function secure({ cert, key }: Pair): tls.SecureContext {
  // TLS itself takes an empty file, and then has nothing to show.
  if (!new X509Certificate(cert).checkPrivateKey(createPrivateKey(key))) {
    throw new Error('the key is not the one of the certificate');
  }
  return tls.createSecureContext({
    cert,
    key,
    minVersion: 'TLSv1.2',
    // A client could make us redo handshakes without end.
    secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
  });
}
