/**
 * The certificate for STARTTLS: the operator's files, which may change at any time, or a self-signed one. Guarantee: new files
 * that cannot be used are logged, and the previous certificate stays in use.
 *
 * The files are read again when a client starts TLS, at most once a second. A file watcher would follow the old file when certbot
 * replaces a symbolic link, or Kubernetes the folder behind the link.
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
  context(): Promise<tls.SecureContext>;
}

interface Pair {
  cert: string;
  key: string;
}

const standardRecheckMs = 1000;

/** Throws an OperatorError if the files cannot be used. */
export async function openCertificate(options: {
  files: CertificateFiles | null;
  mailHost: string;
  log: Log;
  recheckMs?: number;
  /** Called for every certificate of the files that comes into use. */
  onExpiry?: ((expiry: Date) => void) | undefined;
}): Promise<Certificate> {
  const { files, mailHost, log, recheckMs = standardRecheckMs, onExpiry } = options;
  return files ? openFiles(files, log, recheckMs, onExpiry) : makeOnDemand(mailHost);
}

/** Made for the first client that starts TLS: many installations never see one. */
function makeOnDemand(mailHost: string): Certificate {
  let made: tls.SecureContext | null = null;
  return {
    async context() {
      made ??= secure(makeSelfSigned(mailHost, new Date()));
      return made;
    },
  };
}

async function openFiles(
  files: CertificateFiles,
  log: Log,
  recheckMs: number,
  onExpiry?: (expiry: Date) => void,
): Promise<Certificate> {
  let current: { pair: Pair; context: tls.SecureContext };
  try {
    const pair = await readPair(files);
    current = { pair, context: secure(pair) };
  } catch (cause) {
    throw new OperatorError(
      `The certificate for SMTP cannot be used: ${(cause as Error).message}. Check the certificate ${files.certFile} and its key ${files.keyFile}.`,
      { cause },
    );
  }
  noteExpiry(current.pair);
  let checkedAt = performance.now();
  let loggedError = '';
  let checking: Promise<void> | null = null;

  async function check(): Promise<void> {
    let seen = '';
    try {
      const pair = await readPair(files);
      seen = pair.cert + pair.key;
      if (seen === current.pair.cert + current.pair.key) return;
      current = { pair, context: secure(pair) };
      loggedError = '';
      log.info({ certFile: files.certFile }, 'The new certificate for SMTP is in use');
      noteExpiry(pair);
    } catch (err) {
      const reason = `${(err as Error).message} ${seen}`;
      if (reason === loggedError) return;
      loggedError = reason;
      log.error(
        { ...files, reason: (err as Error).message },
        'The new certificate for SMTP cannot be used; the previous certificate stays in use',
      );
    } finally {
      checkedAt = performance.now();
      checking = null;
    }
  }

  function noteExpiry({ cert }: Pair): void {
    const { validTo, validToDate } = new X509Certificate(cert);
    onExpiry?.(validToDate);
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
  // TLS accepts an empty file, and then has no certificate to send.
  if (!new X509Certificate(cert).checkPrivateKey(createPrivateKey(key))) {
    throw new Error('the key does not belong to the certificate');
  }
  return tls.createSecureContext({
    cert,
    key,
    minVersion: 'TLSv1.2',
    // A client could request handshakes without end.
    secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
  });
}
