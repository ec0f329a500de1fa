/** With `--profile` the service loads this file first. It starts and stops V8's sampling profiler when the bench says so. */
import { Session } from 'node:inspector/promises';
import { isMainThread } from 'node:worker_threads';

/** V8's own default is a millisecond. */
const intervalUs = 500;

if (isMainThread) {
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.setSamplingInterval', { interval: intervalUs });
  process.on('message', async (question: unknown) => {
    // Another file may answer other questions.
    if (question !== 'start profile' && question !== 'stop profile') return;
    if (question === 'start profile') await session.post('Profiler.start');
    const answer = question === 'start profile' ? null : (await session.post('Profiler.stop')).profile;
    process.send?.({ profile: answer });
  });
  // The listener must not keep a stopped service alive.
  process.channel?.unref();
}
