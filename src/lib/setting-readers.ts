/** What a setting is, and how its text is read: a value, or a `Fault` whose message says what to write instead. */
import { isIP } from 'node:net';
import { suggest } from './suggest.ts';

/** What a reader throws; `readConfig` puts the setting's name in front. */
export class Fault extends Error {}

export interface Setting<T> {
  read: (text: string) => T;
  fallback: T;
  /** The default, as a person reads it. */
  shown: string;
  about: string;
  secret?: boolean;
}

export function setting<T>(
  read: (text: string) => T,
  fallback: NoInfer<T>,
  shown: string,
  about: string,
  extra: Pick<Setting<T>, 'secret'> = {},
): Setting<T> {
  return { read, fallback, shown, about, ...extra };
}

/** Any word is fine but one that was meant to be the strict one. */
export function nodeEnv(given: string): string {
  if (!/^prod/i.test(given) || given === 'production') return given;
  throw new Fault('write production, or leave it out for development.');
}

export function text(given: string): string {
  return given;
}

export function bool(given: string): boolean {
  if (given === 'true' || given === '1') return true;
  if (given === 'false' || given === '0') return false;
  throw new Fault('write true, false, 1 or 0.');
}

export function wholeNumber(least: number, most: number) {
  return (given: string): number => {
    const number = /^\d{1,15}$/.test(given) ? Number(given) : Number.NaN;
    if (number >= least && number <= most) return number;
    throw new Fault(`write a whole number from ${least} to ${most}.`);
  };
}

export function port(given: string): number {
  return wholeNumber(0, 65_535)(given);
}

export function oneOf<T extends string>(allowed: readonly T[]) {
  return (given: string): T => {
    if (allowed.includes(given as T)) return given as T;
    const near = suggest(given, allowed);
    throw new Fault(`"${given}" is none of ${allowed.join(', ')}.${near ? ` Did you mean ${near}?` : ''}`);
  };
}

export function list<T>(readOne: (text: string) => T) {
  return (given: string): readonly T[] => {
    const parts = given.split(',').map((part) => part.trim());
    const written = parts.filter((part) => part !== '');
    if (written.length === 0) throw new Fault('write at least one, or leave it out.');
    return written.map(readOne);
  };
}

export function token(given: string): string {
  if (/^[\x21-\x7e]{32,}$/.test(given)) return given;
  throw new Fault('write at least 32 printable characters without spaces (openssl rand -hex 32).');
}

export function secretKey(given: string): Buffer {
  const bytes = /^[0-9a-f]{64}$/i.test(given) ? Buffer.from(given, 'hex') : Buffer.from(given, 'base64');
  if (bytes.length === 32) return bytes;
  throw new Fault('write 32 bytes in base64 or hex for each key (openssl rand -base64 32).');
}

export function basePath(given: string): string {
  const trimmed = given.replace(/\/+$/, '');
  if (/^(\/[A-Za-z0-9._~-]+)*$/.test(trimmed)) return trimmed;
  throw new Fault('write a path such as /api/v2.');
}

export function postgresUrl(given: string): string {
  // Not parsed as a URL: several hosts with commas are fine here.
  if (/^postgres(ql)?:\/\/\S+$/.test(given)) return given;
  throw new Fault('write postgres://user:password@host:port/database (special characters percent-encoded).');
}

export function publicUrl(given: string): string {
  const url = readUrl(given);
  if (url && /^https?:$/.test(url.protocol) && !url.search && !url.hash && !url.username) {
    return url.href.replace(/\/+$/, '');
  }
  throw new Fault('write an absolute URL such as https://mail.example.com.');
}

export function collectorUrl(given: string): string {
  const url = readUrl(given);
  if (url && /^https?:$/.test(url.protocol) && !url.search && !url.hash && !url.username) return url.href;
  throw new Fault('write an absolute URL such as http://localhost:4318.');
}

/** One `name=value`, the value percent-encoded where it needs to be (W3C Baggage). */
export function pair(given: string): string {
  if (/^[\w.%!#$&'*+^`|~/-]+\s*=\s*(?=\S)(%[0-9a-f]{2}|[^%])*$/i.test(given)) return given;
  throw new Fault('write name=value, several with commas, values percent-encoded.');
}

export function ratio(given: string): number {
  const number = /^(\d+(\.\d*)?|\.\d+)$/.test(given) ? Number(given) : Number.NaN;
  if (number >= 0 && number <= 1) return number;
  throw new Fault('write a number from 0 to 1.');
}

export function hostName(given: string): string {
  if (/^(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/i.test(given))
    return given.toLowerCase();
  throw new Fault('write a host name such as mx.example.com.');
}

export function dnsServer(given: string): string {
  const [, host = given, port = '53'] = /^\[?([^\]]*?)\]?(?::(\d{1,5}))?$/.exec(given) ?? [];
  const address = isIP(given) ? given : host;
  if (isIP(address) !== 0 && Number(port) > 0 && Number(port) <= 65_535) return given;
  throw new Fault('write addresses such as 9.9.9.9, 127.0.0.1:5353 or [2620:fe::fe]:53.');
}

export function addressRange(given: string): string {
  const [address = '', prefix] = given.split('/', 2);
  const bits = isIP(address) === 6 ? 128 : 32;
  const fits = prefix === undefined || (/^\d{1,3}$/.test(prefix) && Number(prefix) <= bits);
  if (isIP(address) !== 0 && fits) return given;
  throw new Fault('write address ranges such as 10.0.0.0/8 or fd00::/8.');
}

export function origin(given: string): string {
  if (given === '*' || readUrl(given)?.origin === given) return given;
  throw new Fault('write origins such as https://app.example.com, or *.');
}

function readUrl(given: string): URL | null {
  return URL.canParse(given) ? new URL(given) : null;
}
