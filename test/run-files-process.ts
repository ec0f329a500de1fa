/** One of the processes of run-files.ts: it runs the files that it is sent, and says what node's test runner says of them. */
import { run } from 'node:test';
import { inspect } from 'node:util';
import type { Failure, Said } from './run-files.ts';

process.on('message', async (file: string) => {
  // The runner ends a file when nothing keeps the process alive any more.
  process.channel?.unref();
  for await (const event of run({ files: [file], isolation: 'none', timeout: 600_000 })) {
    const { type, data } = event as { type: string; data: { details?: { error?: unknown } } };
    const error = data?.details?.error;
    say({ type, data: error ? { ...data, details: { ...data.details, error: describe(error) } } : data });
  }
  process.channel?.ref();
  say({ type: 'end' });
});
process.on('disconnect', () => process.exit());

function describe(error: unknown): Failure {
  const { failureType, cause } = error as { failureType: string; cause?: unknown };
  return { failureType, text: inspect(cause ?? error) };
}

function say(said: Said): void {
  process.send?.(said);
}
