/** States, times and sizes in the words that people read. */
import type { Attempt, Delivery, Identity, Mailbox, Message } from './contract.ts';

export type Tone = 'good' | 'bad' | 'wait' | 'calm';

const tones: Record<string, Tone> = {
  verified: 'good',
  valid: 'good',
  delivered: 'good',
  sent: 'good',
  ok: 'good',
  idle: 'good',
  pass: 'good',
  failed: 'bad',
  missing: 'bad',
  failing: 'bad',
  mismatch: 'bad',
  bounced: 'bad',
  complained: 'bad',
  fail: 'bad',
  permerror: 'bad',
  pending: 'wait',
  syncing: 'wait',
  unverified: 'wait',
  queued: 'wait',
  mixed: 'wait',
  softfail: 'wait',
  temperror: 'wait',
};

export function toneOf(state: string): Tone {
  return tones[state] ?? 'calm';
}

export function formatSize(bytes: number): string {
  if (bytes < 1024) return `${bytes} bytes`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MB`;
}

export function formatMs(ms: number): string {
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** The time of today, the day of this year, or the date. */
export function formatWhen(at: Date, now: Date): string {
  if (at.toDateString() === now.toDateString())
    return at.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  const year = at.getFullYear() === now.getFullYear() ? {} : ({ year: 'numeric' } as const);
  return at.toLocaleDateString([], { day: 'numeric', month: 'short', ...year });
}

/** How long until a time: "in 5 seconds", "in 2 hours". A time that has passed is "now". */
export function formatUntil(at: Date, now: Date): string {
  const seconds = Math.ceil((at.getTime() - now.getTime()) / 1000);
  const minutes = Math.round(seconds / 60);
  if (seconds <= 0) return 'now';
  if (seconds < 60) return `in ${count(seconds, 'second')}`;
  if (minutes < 60) return `in ${count(minutes, 'minute')}`;
  return `in ${count(Math.round(seconds / 3600), 'hour')}`;
}

function count(n: number, unit: string): string {
  return `${n} ${unit}${n === 1 ? '' : 's'}`;
}

/** What the status of an identity means, and what to do. */
export function describeStatus({ kind, status, ...identity }: Identity): string {
  if (status === 'verified') return 'It receives and sends mail.';
  if (kind === 'domain')
    return status === 'failed'
      ? 'Required DNS records are missing.'
      : 'Waiting for the required DNS records.';
  const hasDomain = identity.domain_identity_id !== null;
  if (status === 'pending')
    return hasDomain
      ? 'Waiting for the DNS records of its domain, or for the link in the confirmation mail to be opened.'
      : 'Waiting for the link in the confirmation mail to be opened: the link works for 24 hours. If it was opened already, another user holds the address or its domain.';
  if (status === 'failed' && !hasDomain)
    return 'Another user proved to own its domain. Confirm the address again when the domain is free.';
  return hasDomain
    ? 'Its domain is not verified. Publish the DNS records of the domain, or confirm the address by mail.'
    : 'Nobody has confirmed it yet. Confirm it by mail, or connect its domain as an identity.';
}

/** What the state of a mailbox at another server means. */
export function describeSync({ kind, path, sync }: Mailbox): string {
  if (!sync) return 'Posthorn itself holds this mailbox.';
  if (kind === 'trash') return 'It is listed only, and not read.';
  if (sync.state === 'off')
    return path === null ? 'The server has no such folder, or is not connected yet.' : 'It is not read.';
  if (sync.state === 'failing') return sync.error?.message ?? 'It cannot be read.';
  if (sync.backlog > 0) return `Reading older mail: ${sync.backlog.toLocaleString()} left.`;
  return sync.state === 'syncing' ? 'Being read.' : 'All mail was read.';
}

type Address = NonNullable<Message['from']>;

export function formatAddress(address: Address | null): string {
  if (!address) return 'Unknown sender';
  return address.name || address.address || 'Unknown';
}

export function formatFullAddress({ name, address }: Address): string {
  if (!name) return address ?? '';
  return address ? `${name} <${address}>` : name;
}

/** The state of several deliveries as one word, the worst first. */
export function summarizeDeliveries(deliveries: readonly Pick<Delivery, 'status'>[]): {
  text: string;
  tone: Tone;
} {
  const count = (status: string) => deliveries.filter((delivery) => delivery.status === status).length;
  const all = deliveries.length;
  const of = (n: number) => (all > 1 ? ` ${n}/${all}` : '');
  if (all === 0) return { text: 'no webhook', tone: 'calm' };
  if (count('failed')) return { text: `failed${of(count('failed'))}`, tone: 'bad' };
  if (count('pending')) return { text: `pending${of(count('pending'))}`, tone: 'wait' };
  if (count('delivered')) return { text: `delivered${of(count('delivered'))}`, tone: 'good' };
  return { text: 'cancelled', tone: 'calm' };
}

/** How often to ask what became of something that waits for its next try: a try may be minutes away. Null: nothing waits. */
export function askAgainMs(waiting: readonly { nextAttemptAt: string | null }[], now: Date): number | null {
  if (waiting.length === 0) return null;
  const soon = now.getTime() + 10_000;
  return waiting.some(({ nextAttemptAt }) => nextAttemptAt === null || Date.parse(nextAttemptAt) < soon)
    ? 1000
    : 15_000;
}

export function describeAttempt({ responseStatus, error, errorDetail }: Attempt): string {
  if (responseStatus !== null) return `Answered ${responseStatus}`;
  return errorDetail ?? error ?? 'No answer';
}

const browsers = [
  ['Edg/', 'Edge'],
  ['OPR/', 'Opera'],
  ['Firefox/', 'Firefox'],
  ['Chrome/', 'Chrome'],
  ['Safari/', 'Safari'],
] as const;
const systems = [
  ['Android', 'Android'],
  ['iPhone', 'iPhone'],
  ['iPad', 'iPad'],
  ['Windows', 'Windows'],
  ['Mac OS', 'macOS'],
  ['Linux', 'Linux'],
] as const;

/** "Firefox on Linux". The first match counts: Edge also calls itself Chrome, and Chrome also Safari. */
export function describeBrowser(userAgent: string | null): string {
  const find = (names: readonly (readonly [string, string])[]) =>
    names.find(([mark]) => userAgent?.includes(mark))?.[1];
  const browser = find(browsers) ?? 'Unknown browser';
  const system = find(systems);
  return system ? `${browser} on ${system}` : browser;
}

type Authentication = NonNullable<Message['authentication']>;
type Verdict = { name: string; result: string; text: string };

/** SPF, DKIM and DMARC as sentences. */
export function describeAuthentication({ spf, dkim, dmarc }: Authentication): Verdict[] {
  const [best] = [...dkim].sort((a, b) => rank(a) - rank(b));
  return [
    { name: 'SPF', result: spf.result, text: describeSpf(spf) },
    { name: 'DKIM', result: best?.result ?? 'none', text: describeDkim(best) },
    { name: 'DMARC', result: dmarc.result, text: describeDmarc(dmarc) },
  ];
}

function rank({ result, aligned }: Authentication['dkim'][number]): number {
  return (result === 'pass' ? 0 : 2) + (aligned ? 0 : 1);
}

function describeSpf({ result, domain }: Authentication['spf']): string {
  const who = domain ?? 'The sending domain';
  if (result === 'pass') return `${who} allows this server to send its mail.`;
  if (result === 'fail') return `${who} says that this server may not send its mail.`;
  if (result === 'softfail') return `${who} does not expect mail from this server.`;
  if (result === 'none') return `${who} does not say which servers may send its mail.`;
  if (result === 'neutral') return `${who} says nothing about this server.`;
  return `The SPF record of ${domain ?? 'the sending domain'} could not be checked.`;
}

function describeDkim(signature: Authentication['dkim'][number] | undefined): string {
  if (!signature) return 'The message has no signature.';
  const { result, domain, aligned, reason } = signature;
  const who = domain ?? 'a domain';
  if (result === 'pass')
    return `${who} signed the message, and nobody changed it since.${aligned ? '' : ' It is not the domain of the sender.'}`;
  return `The signature of ${who} is not valid${reason ? `: ${reason}` : '.'}`;
}

function describeDmarc({ result, policy, reason }: Authentication['dmarc']): string {
  if (result === 'pass') return 'The address of the sender is proven by SPF or DKIM.';
  if (result === 'fail')
    return `The address of the sender is not proven${policy ? `; its domain asks for "${policy}"` : ''}.`;
  if (result === 'none') return 'The domain of the sender has no DMARC policy.';
  return reason ?? 'The policy could not be checked.';
}
