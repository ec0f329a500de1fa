/** The jobs of a worker thread (worker.ts). They compute only: DNS queries are made by their caller. */
import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import type { Keys } from '../mailauth/dkim.ts';
import { type Signed, type SigningKey, signMessage } from '../mailauth/sign.ts';
import { type SignatureResults, verifySignatures } from '../mailauth/signatures.ts';
import { type ComposedMail, composeWithin, type TooLarge } from '../mime/compose.ts';
import { type PreparedMessage, type PrepareOptions, prepareMessage } from '../mime/outgoing.ts';
import {
  extractAttachment,
  extractReport,
  type ParsedAttachment,
  type ParsedMessage,
  parseMessage,
} from '../mime/parse.ts';
import type { FoundReport } from '../mime/reports.ts';
import type { FieldError } from '../problems.ts';
import { type DraftBody, readDraftBody, readTexts } from './draft-body.ts';
import { type HookBody, readHookBody } from './hook-body.ts';

/** Of the bytes of a message. */
export interface RawFacts {
  size: number;
  /** In hex. */
  sha256: string;
  isUtf8: boolean;
}

/** What is shown of a message, and the facts that are stored with it. */
export interface ReadMail {
  parsed: ParsedMessage;
  facts: RawFacts;
}

/** By kind: what is given to the job, and its result. Bytes come as `raw`, of which no copy is made. */
export interface MailJobs {
  parse: { given: { raw: Buffer }; result: ReadMail };
  verify: { given: { raw: Buffer; keys: Keys }; result: SignatureResults };
  extract: { given: { raw: Buffer; n: number }; result: ExtractedAttachment | null };
  report: { given: { raw: Buffer }; result: FoundReport | null };
  readHook: { given: { raw: Buffer; contentType: string }; result: HookBody };
  readDraft: { given: { raw: Buffer }; result: DraftBody };
  compose: { given: ComposeGiven; result: Composed | TooLarge };
  prepare: { given: { raw: Buffer; options: PrepareOptions }; result: Prepared | { errors: FieldError[] } };
  sign: { given: { raw: Buffer; key: SigningKey; now: Date }; result: Signed };
}

export type JobKind = keyof MailJobs;

export interface ExtractedAttachment {
  meta: ParsedAttachment;
  content: Uint8Array;
}

interface ComposeGiven {
  /** A JSON body (`readDraft`), whose texts and attachments take the place of those of `mail`. Left out: `mail` has them. */
  raw?: Buffer;
  mail: ComposedMail;
  maxBytes: number;
}

/** A message that goes out, as it will be sent. */
export interface Composed extends ReadMail {
  bytes: Buffer;
}

export type Prepared = PreparedMessage & ReadMail;

export const jobs: {
  [Kind in JobKind]: (given: MailJobs[Kind]['given']) => MaybePromise<MailJobs[Kind]['result']>;
} = {
  parse: ({ raw }) => readMail(raw),
  verify: ({ raw, keys }) => verifySignatures(raw, keys),
  extract: ({ raw, n }) => extractAttachment(raw, n),
  report: ({ raw }) => extractReport(raw),
  readHook: ({ raw, contentType }) => readHookBody(raw, contentType),
  readDraft: ({ raw }) => readDraftBody(raw),
  async compose({ raw, mail, maxBytes }) {
    const composed = await composeWithin(maxBytes, raw ? { ...mail, ...readTexts(raw) } : mail);
    return 'bytes' in composed ? { ...composed, ...(await readMail(composed.bytes)) } : composed;
  },
  async prepare({ raw, options }) {
    const prepared = prepareMessage(raw, options);
    return 'errors' in prepared ? prepared : { ...prepared, ...(await readMail(prepared.bytes)) };
  },
  sign: ({ raw, key, now }) => signMessage(raw, key, now),
};

async function readMail(raw: Buffer): Promise<ReadMail> {
  return { parsed: await parseMessage(raw), facts: readRawFacts(raw) };
}

export function readRawFacts(raw: Buffer): RawFacts {
  const sha256 = createHash('sha256').update(raw).digest('hex');
  return { size: raw.length, sha256, isUtf8: isUtf8(raw) };
}

type MaybePromise<Result> = Result | Promise<Result>;
