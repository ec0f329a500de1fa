/**
 * Messages of Amazon SNS: whether Amazon signed them for one topic, and the confirmation of a subscription.
 * Guarantees: certificates and confirmations are fetched only from the SNS host of the given region, over https on its standard port,
 * by the egress rules; a subscription is confirmed only after the signature and the topic were checked; the cache has a bound.
 */
import { verify, X509Certificate } from 'node:crypto';
import tls from 'node:tls';
import { snsHostOf } from '../net/aws-hosts.ts';
import type { Egress } from '../net/egress.ts';
import { requestSmall } from '../net/small-request.ts';
import { isRecord } from './credentials.ts';
import { isFresh } from './hook.ts';

interface SnsMessage {
  /** `Notification`, or one of the others in `signedFields`. */
  type: string;
  messageId: string;
  text: string;
}

export interface Sns {
  /** The message, if Amazon signed it for this topic within a day. A subscription is confirmed before it resolves. */
  read(given: unknown, topic: { region: string; topicArn: string }, nowMs: number): Promise<ReadSns>;
}

type ReadSns = SnsMessage | 'refused' | 'unreachable';

const maxBytes = 64 * 1024;
const withinMs = 10_000;
/** Amazon has one certificate a region, and changes it about once a year. */
const maxCertificates = 100;
const keepMs = 86_400_000;

/** `port` and `ca`: where a test has its server. They change nothing of the names that are allowed. */
export function makeSns(parts: { egress: Egress; port?: number | undefined; ca?: string | undefined }): Sns {
  const { egress, port, ca } = parts;
  const secure = tls.createSecureContext(ca === undefined ? {} : { ca });
  const known = new Map<string, { certificate: X509Certificate; until: number }>();
  const fetching = new Map<string, Promise<X509Certificate | null>>();

  /** Null: no response with the status 200 came in time. */
  async function get(allowed: URL): Promise<string | null> {
    const url = new URL(allowed);
    if (port !== undefined) url.port = String(port);
    const headers = { host: allowed.host };
    const found = await requestSmall({ url, headers }, { egress, secure, withinMs, maxBytes });
    return found.kind === 'response' && found.status === 200 ? found.body : null;
  }

  async function fetchCertificate(url: URL, nowMs: number): Promise<X509Certificate | null> {
    const certificate = readCertificate((await get(url)) ?? '');
    if (!certificate) return null;
    const [oldest] = known.size >= maxCertificates ? known.keys() : [];
    if (oldest !== undefined) known.delete(oldest);
    known.set(url.href, { certificate, until: nowMs + keepMs });
    return certificate;
  }

  function findCertificate(url: URL, nowMs: number): Promise<X509Certificate | null> {
    const found = known.get(url.href);
    if (found && found.until > nowMs) return Promise.resolve(found.certificate);
    const open =
      fetching.get(url.href) ?? fetchCertificate(url, nowMs).finally(() => fetching.delete(url.href));
    fetching.set(url.href, open);
    return open;
  }

  return {
    async read(json, { region, topicArn }, nowMs) {
      const given = readFields(json);
      const signedText = given && writeSigned(given);
      if (!given || signedText === null || readValue(given, 'TopicArn') !== topicArn) return 'refused';
      if (!isFresh(Date.parse(readValue(given, 'Timestamp')), nowMs)) return 'refused';
      const url = readSnsUrl(readValue(given, 'SigningCertURL'), region);
      // Nothing else is asked of the host: the path of a certificate is known.
      if (
        !url ||
        !/^\/SimpleNotificationService-[0-9a-f]{1,64}\.pem$/.test(url.pathname) ||
        url.search !== ''
      )
        return 'refused';
      const certificate = await findCertificate(url, nowMs);
      if (!certificate) return 'unreachable';
      if (!isSignedBy(given, signedText, certificate, nowMs)) return 'refused';
      const type = readValue(given, 'Type');
      if (type === 'SubscriptionConfirmation') {
        const confirm = readSnsUrl(readValue(given, 'SubscribeURL'), region);
        if (!confirm) return 'refused';
        if ((await get(confirm)) === null) return 'unreachable';
      }
      return { type, messageId: readValue(given, 'MessageId'), text: readValue(given, 'Message') };
    },
  };
}

/** An https URL on the SNS host of the region, on the standard port, without a login; null: any other. */
export function readSnsUrl(text: string, region: string): URL | null {
  const url = URL.canParse(text) ? new URL(text) : null;
  const isOurs =
    url?.protocol === 'https:' && url.host === snsHostOf(region) && url.username + url.password === '';
  return isOurs ? url : null;
}

type Fields = ReadonlyMap<string, string>;

function readValue(given: Fields, name: string): string {
  return given.get(name) ?? '';
}

/** Null: not a message of SNS. */
function readFields(given: unknown): Fields | null {
  if (!isRecord(given)) return null;
  const texts = Object.entries(given).filter(
    (entry): entry is [string, string] => typeof entry[1] === 'string',
  );
  return new Map(texts);
}

const notification = ['Message', 'MessageId', 'Subject', 'Timestamp', 'TopicArn', 'Type'];
const confirmation = ['Message', 'MessageId', 'SubscribeURL', 'Timestamp', 'Token', 'TopicArn', 'Type'];
const signedFields = new Map<string, readonly string[]>([
  ['Notification', notification],
  ['SubscriptionConfirmation', confirmation],
  ['UnsubscribeConfirmation', confirmation],
]);

/** What Amazon signs: names and values of these fields, each on a line of its own. Null: a field is missing. */
function writeSigned(given: Fields): string | null {
  const names = signedFields
    .get(readValue(given, 'Type'))
    ?.filter((name) => name !== 'Subject' || given.has(name));
  if (!names?.every((name) => given.has(name))) return null;
  return names.map((name) => `${name}\n${readValue(given, name)}\n`).join('');
}

const digests = new Map([
  ['1', 'sha1'],
  ['2', 'sha256'],
]);

function isSignedBy(given: Fields, signed: string, certificate: X509Certificate, nowMs: number): boolean {
  const digest = digests.get(readValue(given, 'SignatureVersion'));
  const isValid = certificate.validFromDate.getTime() <= nowMs && nowMs <= certificate.validToDate.getTime();
  if (!digest || !isValid || certificate.publicKey.asymmetricKeyType !== 'rsa') return false;
  return verify(
    digest,
    Buffer.from(signed),
    certificate.publicKey,
    Buffer.from(readValue(given, 'Signature'), 'base64'),
  );
}

function readCertificate(pem: string): X509Certificate | null {
  try {
    return new X509Certificate(pem);
  } catch {
    return null;
  }
}
