/** The worker that examines large messages, one job after the other. See examine.ts. */
import { parentPort } from 'node:worker_threads';
import { verifySignatures } from '../mailauth/signatures.ts';
import { extractAttachment, parseMessage } from '../mime/parse.ts';
import type { ExamineJob, ExamineResult } from './examine.ts';

parentPort?.on('message', async (job: ExamineJob) => {
  const result = await run(job);
  const hasContent = result !== null && 'content' in result;
  parentPort?.postMessage(result, hasContent ? [result.content.buffer as ArrayBuffer] : []);
});

async function run(job: ExamineJob): Promise<ExamineResult> {
  const { buffer, byteOffset, byteLength } = job.raw;
  const raw = Buffer.from(buffer, byteOffset, byteLength);
  if (job.kind === 'parse') return parseMessage(raw);
  if (job.kind === 'verify') return verifySignatures(raw, job.keys);
  const extracted = await extractAttachment(raw, job.n);
  // The content may be a view of the whole message. A copy can be transferred alone, and the message is freed at once.
  const result = extracted && { ...extracted, content: new Uint8Array(extracted.content) };
  (buffer as ArrayBuffer).transfer(0);
  return result;
}
