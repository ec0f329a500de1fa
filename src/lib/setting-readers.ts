/** The parsers of settings: each returns a value, or throws a `SettingError` that says what to write instead. */
import { isIP } from 'node:net';
import { parseRelayUrl, type Relay } from './relay-url.ts';
import { suggest } from './suggest.ts';

/** `readConfig` puts the name of the setting before the message. */
export class SettingError extends Error {}

export interface Setting<T> {
  read: (text: string) => T;
  fallback: T;
  about: string;
  /** The default, as docs/config.md shows it. */
  shown: string;
  secret: boolean;
}

export function setting<T>(
  read: (text: string) => T,
  fallback: NoInfer<T>,
  about: string,
  { shown = String(fallback ?? '') || 'none', secret = false } = {},
): Setting<T> {
  return { read, fallback, about, shown, secret };
}

function accept(isValid: (given: string) => boolean, advice: string) {
  return (given: string): string => {
    if (isValid(given)) return given;
    throw new SettingError(advice);
  };
}

export const text = (given: string) => given;

/** Any value is accepted, except a misspelled `production`: it would turn off the strict defaults. */
export const nodeEnv = accept(
  (given) => !/^prod/i.test(given) || given === 'production',
  'write production, or remove the setting for development.',
);

export function bool(given: string): boolean {
  if (given === 'true' || given === '1') return true;
  if (given === 'false' || given === '0') return false;
  throw new SettingError('write true, false, 1 or 0.');
}

export function wholeNumber(least: number, most: number) {
  return (given: string): number => {
    const number = /^\d{1,15}$/.test(given) ? Number(given) : Number.NaN;
    if (number >= least && number <= most) return number;
    throw new SettingError(`write a whole number from ${least} to ${most}.`);
  };
}

export const port = wholeNumber(0, 65_535);

export function oneOf<T extends string>(allowed: readonly T[]) {
  return (given: string): T => {
    if (allowed.includes(given as T)) return given as T;
    const near = suggest(given, allowed);
    throw new SettingError(
      `"${given}" is not one of ${allowed.join(', ')}.${near ? ` Did you mean ${near}?` : ''}`,
    );
  };
}

export function list<T>(readOne: (text: string) => T) {
  return (given: string): readonly T[] => {
    const parts = given.split(',').map((part) => part.trim());
    const written = parts.filter(Boolean);
    if (written.length === 0) throw new SettingError('write at least one value, or remove the setting.');
    return written.map(readOne);
  };
}

export const token = accept(
  (given) => /^[\x21-\x7e]{32,}$/.test(given),
  'write at least 32 printable characters without spaces (openssl rand -hex 32).',
);

export const keyAdvice = 'Create a key with: openssl rand -base64 32';

export function secretKey(given: string): Buffer {
  const bytes = /^[0-9a-f]{64}$/i.test(given) ? Buffer.from(given, 'hex') : Buffer.from(given, 'base64');
  if (bytes.length === 32) return bytes;
  throw new SettingError(`write 32 bytes in base64 or hex for each key. ${keyAdvice}`);
}

export function basePath(given: string): string {
  const trimmed = given.replace(/\/+$/, '');
  if (/^(\/[A-Za-z0-9._~-]+)*$/.test(trimmed)) return trimmed;
  throw new SettingError('write a path such as /api/v2.');
}

// `new URL` refuses several hosts separated by commas.
export const postgresUrl = accept(
  (given) => /^postgres(ql)?:\/\/\S+$/.test(given),
  'write postgres://user:password@host:port/database (special characters percent-encoded).',
);

export function publicUrl(given: string): string {
  return webUrl('https://mail.example.com')(given).replace(/\/+$/, '');
}

export function webUrl(example: string) {
  return (given: string): string => {
    const url = readUrl(given);
    if (url && /^https?:$/.test(url.protocol) && !url.search && !url.hash && !url.username) return url.href;
    throw new SettingError(`write an absolute URL such as ${example}.`);
  };
}

/** `name=value`, where the value may be percent-encoded (W3C Baggage). */
export const pair = accept(
  (given) => /^[\w.%!#$&'*+^`|~/-]+\s*=\s*(?=\S)(%[0-9a-f]{2}|[^%])*$/i.test(given),
  'write name=value pairs, separated by commas, with percent-encoded values.',
);

export function ratio(given: string): number {
  const number = /^(\d+(\.\d*)?|\.\d+)$/.test(given) ? Number(given) : Number.NaN;
  if (number >= 0 && number <= 1) return number;
  throw new SettingError('write a number from 0 to 1.');
}

export function hostName(given: string): string {
  if (/^(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/i.test(given))
    return given.toLowerCase();
  throw new SettingError('write a host name such as mx.example.com.');
}

export const dnsServer = accept((given) => {
  const [, host = given, port = '53'] = /^\[?([^\]]*?)\]?(?::(\d{1,5}))?$/.exec(given) ?? [];
  return isIP(isIP(given) ? given : host) !== 0 && Number(port) > 0 && Number(port) <= 65_535;
}, 'write addresses such as 9.9.9.9, 127.0.0.1:5353 or [2620:fe::fe]:53.');

export const addressRange = accept((given) => {
  const [address = '', prefix = '0'] = given.split('/', 2);
  const bits = isIP(address) === 6 ? 128 : 32;
  return isIP(address) !== 0 && /^\d{1,3}$/.test(prefix) && Number(prefix) <= bits;
}, 'write address ranges such as 10.0.0.0/8 or fd00::/8.');

export const origin = accept(
  (given) => given === '*' || readUrl(given)?.origin === given,
  'write origins such as https://app.example.com, or *.',
);

function readUrl(given: string): URL | null {
  return URL.canParse(given) ? new URL(given) : null;
}

export function relayUrl(given: string): Relay {
  const relay = parseRelayUrl(given);
  // Without the value, which may have a password.
  if ('fault' in relay) throw new SettingError(`${relay.fault}.`);
  return relay;
}
