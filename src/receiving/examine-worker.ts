/** The thread that works on large messages, one question after the other. See examine.ts. */
import { parentPort } from 'node:worker_threads';
import { verifySignatures } from '../mailauth/signatures.ts';
import { extractAttachment, parseMessage } from '../mime/parse.ts';
import type { Question, Told } from './examine.ts';

parentPort?.on('message', async (question: Question) => {
  const told = await answer(question);
  const isContent = told !== null && 'content' in told;
  parentPort?.postMessage(told, isContent ? [told.content.buffer as ArrayBuffer] : []);
});

async function answer(question: Question): Promise<Told> {
  const { buffer, byteOffset, byteLength } = question.raw;
  const raw = Buffer.from(buffer, byteOffset, byteLength);
  if (question.kind === 'parse') return parseMessage(raw);
  if (question.kind === 'verify') return verifySignatures(raw, question.keys);
  const extracted = await extractAttachment(raw, question.n);
  // A copy of its own, to give away: the content may be a view of the whole message, which is let go of at once.
  const told = extracted && { ...extracted, content: new Uint8Array(extracted.content) };
  (buffer as ArrayBuffer).transfer(0);
  return told;
}
