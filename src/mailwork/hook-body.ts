/** Reads the body of a provider's call. Whoever has an account here can call the own hooks, so the body may be anything. */
import { readForm } from '../lib/form.ts';
import { measureJson } from '../lib/json.ts';

export interface HookBody {
  /** Of a form: the first value of each field. Empty: not a form. */
  form: Map<string, Uint8Array>;
  /** A long text in it is bytes. Undefined: not JSON. */
  json: unknown;
}

/** A call of SendGrid has up to a thousand events, of some twenty fields each. */
const maxValues = 100_000;
/** SES sends mail of up to 150 KB. A longer text can only be mail, which is stored as bytes. */
const maxTextLength = 512 * 1024;

export function readHookBody(raw: Buffer, contentType: string): HookBody {
  const form = readForm(raw, contentType);
  return { form, json: form.size > 0 ? undefined : readHookJson(raw) };
}

/** 36 MB of empty objects took 27 s and 800 MB to parse, so the values are counted first. */
export function readHookJson(raw: Uint8Array): unknown {
  const bytes = Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength);
  try {
    measureJson(bytes, { maxValues });
    const text = bytes.toString();
    return text.length <= maxTextLength ? JSON.parse(text) : JSON.parse(text, makeLongTextsBytes);
  } catch {
    return undefined;
  }
}

function makeLongTextsBytes(_name: string, value: unknown): unknown {
  return typeof value === 'string' && value.length > maxTextLength ? Buffer.from(value) : value;
}
