/** Loaded into the service before it starts, with `--profile`: switches V8's sampling profiler on and off as the bench asks. */
import { Session } from 'node:inspector/promises';
import { isMainThread } from 'node:worker_threads';

/** V8's own default is a millisecond. */
const intervalUs = 500;

if (isMainThread) {
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.setSamplingInterval', { interval: intervalUs });
  process.on('message', async (question: 'start profile' | 'stop profile') => {
    if (question === 'start profile') await session.post('Profiler.start');
    const answer = question === 'start profile' ? null : (await session.post('Profiler.stop')).profile;
    process.send?.({ profile: answer });
  });
  // Listening must not keep a service alive that is done.
  process.channel?.unref();
}
