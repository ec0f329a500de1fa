/** What a call of a provider is, and what it brings. */
import type { HookBody } from '../mailwork/hook-body.ts';
import type { ProviderReport } from '../store/send-reports.ts';
import { isRecord } from './credentials.ts';

export type HookPath = 'inbound' | 'events';

export interface HookCall {
  path: HookPath;
  /** As it was signed. */
  raw: Buffer;
  body: HookBody;
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

export function fieldOf(value: unknown, ...path: string[]): unknown {
  return path.reduce<unknown>((inner, name) => (isRecord(inner) ? inner[name] : undefined), value);
}

export function textOf(value: unknown, ...path: string[]): string | null {
  const found = fieldOf(value, ...path);
  return typeof found === 'string' && found !== '' ? found : null;
}

/** Of a text of any length; null: missing or empty. */
export function bytesOf(value: unknown, name: string): Buffer | null {
  const found = fieldOf(value, name);
  if (found instanceof Uint8Array) return asBuffer(found);
  return typeof found === 'string' && found !== '' ? Buffer.from(found) : null;
}

/** A field of a form. */
export function formBytesOf({ form }: HookBody, name: string): Buffer | null {
  const found = form.get(name);
  return found ? asBuffer(found) : null;
}

function asBuffer({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

export function listOf(value: unknown, ...path: string[]): unknown[] {
  const found = fieldOf(value, ...path);
  return Array.isArray(found) ? found : [];
}

/** The sender of the envelope; null: the null sender. */
export function senderOf(text: string | null): string | null {
  return text === null || text === '<>' ? null : text.replace(/^<|>$/g, '');
}
