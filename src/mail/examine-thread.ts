/** The thread that examines large messages. See examine.ts. */
import { parentPort, workerData } from 'node:worker_threads';
import { makeAuthenticate } from './authenticate.ts';
import { type Answer, type Asked, type AuthenticateOptions, examine, type Question } from './examine.ts';
import { extractAttachment } from './parse.ts';

const authenticate = makeAuthenticate(workerData as AuthenticateOptions);

async function answer(question: Question): Promise<Answer['told']> {
  const raw = Buffer.from(question.raw.buffer);
  return question.kind === 'examine'
    ? examine(authenticate, raw, question.envelope)
    : extractAttachment(raw, question.n);
}

parentPort?.on('message', async ({ id, question }: Asked) => {
  parentPort?.postMessage({ id, told: await answer(question) } satisfies Answer);
});
