/** What a call of a provider is, and what it brings. */
import { maxDepth, measureJson } from '../lib/json.ts';
import type { ProviderReport } from '../store/send-reports.ts';
import { isRecord } from './credentials.ts';

export type HookPath = 'inbound' | 'events';

export interface HookCall {
  path: HookPath;
  body: Buffer;
  contentType: string;
  /** The first value of a header, by its name in lower case; undefined: missing. */
  header(name: string): string | undefined;
  nowMs: number;
}

export interface ProvidedMail {
  raw: Buffer;
  mailFrom: string | null;
  /** Of the envelope. */
  recipients: string[];
}

export interface HookContent {
  /** Equal for a call that comes again. */
  callKey: string;
  mail: ProvidedMail | null;
  reports: ProviderReport[];
}

/**
 * `refused`: the call is not the provider's, or is too old. `unreachable`: whether it is could not be found out now. `fault`: the call
 * is the provider's, but has not what we need; the text says what to change at the provider.
 */
export type ReadCall = { content: HookContent } | { fault: string } | 'refused' | 'unreachable';

const dayMs = 86_400_000;
/** Together with a day it is as long as the keys of calls are kept. */
const aheadMs = 3_600_000;

/** Whether a call that was signed at this time may be taken. */
export function isFresh(signedMs: number, nowMs: number): boolean {
  return nowMs - signedMs <= dayMs && signedMs - nowMs <= aheadMs;
}

/** A call of SendGrid has up to a thousand events, of some twenty fields each. */
const maxValues = 100_000;

/**
 * Undefined: not JSON of a provider. Whoever has an account here can call the own hooks, and a body of 36 MB that is all empty
 * objects took 27 s and 800 MB to parse.
 */
export function readJsonBody(body: Buffer): unknown {
  const text = body.toString();
  const { depth, values } = measureJson(text, maxValues);
  if (depth > maxDepth || values > maxValues) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function fieldOf(value: unknown, ...path: string[]): unknown {
  return path.reduce<unknown>((inner, name) => (isRecord(inner) ? inner[name] : undefined), value);
}

export function textOf(value: unknown, ...path: string[]): string | null {
  const found = fieldOf(value, ...path);
  return typeof found === 'string' && found !== '' ? found : null;
}

export function listOf(value: unknown, ...path: string[]): unknown[] {
  const found = fieldOf(value, ...path);
  return Array.isArray(found) ? found : [];
}

/** The sender of the envelope; null: the null sender. */
export function senderOf(text: string | null): string | null {
  return text === null || text === '<>' ? null : text.replace(/^<|>$/g, '');
}
