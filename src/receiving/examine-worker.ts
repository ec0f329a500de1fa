/** The worker that examines large messages, one job after the other. See examine.ts. */
import { parentPort } from 'node:worker_threads';
import { signMessage } from '../mailauth/sign.ts';
import { verifySignatures } from '../mailauth/signatures.ts';
import { composeMail } from '../mime/compose.ts';
import { prepareMessage } from '../mime/outgoing.ts';
import { extractAttachment, extractReport, parseMessage } from '../mime/parse.ts';
import type { ExamineJob, ExamineResult } from './examine.ts';

parentPort?.on('message', async (job: ExamineJob) => {
  const result = await run(job);
  const hasContent = result !== null && 'content' in result && result.content instanceof Uint8Array;
  parentPort?.postMessage(result, hasContent ? [result.content.buffer as ArrayBuffer] : []);
});

async function run(job: ExamineJob): Promise<ExamineResult> {
  // A copy, because the content may be a view of a larger buffer.
  if (job.kind === 'compose') return { content: new Uint8Array(await composeMail(job.mail)) };
  const { buffer, byteOffset, byteLength } = job.raw;
  const raw = Buffer.from(buffer, byteOffset, byteLength);
  if (job.kind === 'parse') return parseMessage(raw);
  if (job.kind === 'verify') return verifySignatures(raw, job.keys);
  if (job.kind === 'prepare') return prepareMessage(raw, job.options);
  if (job.kind === 'report') return extractReport(raw);
  if (job.kind === 'sign') return signMessage(raw, job.key, job.now);
  const extracted = await extractAttachment(raw, job.n);
  const result = extracted && { ...extracted, content: makeTransferable(extracted.content, buffer) };
  (buffer as ArrayBuffer).transfer(0);
  return result;
}

/**
 * Copies the content if its buffer is the message or much larger than the content. A transfer moves the whole buffer, and the main
 * thread keeps it until a client has read it.
 */
function makeTransferable(content: Uint8Array, message: ArrayBufferLike): Uint8Array {
  const isAlone = content.buffer !== message && content.length > 0.9 * content.buffer.byteLength;
  return isAlone ? content : new Uint8Array(content);
}
