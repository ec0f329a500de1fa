/** One of the processes of run-files.ts: it runs the files that it is sent, and sends back the events of node's test runner. */
import { run } from 'node:test';
import { inspect } from 'node:util';
import type { Failure, ProcessMessage } from './run-files.ts';

process.on('message', async (file: string) => {
  // The runner ends a file when nothing keeps the process alive any more.
  process.channel?.unref();
  for await (const event of run({ files: [file], isolation: 'none', timeout: 600_000 })) {
    const { type, data } = event as { type: string; data: { details?: { error?: unknown } } };
    const error = data?.details?.error;
    send({ type, data: error ? { ...data, details: { ...data.details, error: describe(error) } } : data });
  }
  process.channel?.ref();
  send({ type: 'end' });
});
process.on('disconnect', () => process.exit());

function describe(error: unknown): Failure {
  const { failureType, cause } = error as { failureType: string; cause?: unknown };
  return { failureType, text: inspect(cause ?? error) };
}

function send(message: ProcessMessage): void {
  process.send?.(message);
}
