/** A service with the preparation `movableClock` loads this file first. The bench moves the clock of the service with a message. */
import { isMainThread } from 'node:worker_threads';

let aheadMs = 0;
const trueNow = Date.now;
const now = () => trueNow() + aheadMs;

globalThis.Date = new Proxy(Date, {
  apply: () => new Date(now()).toString(),
  construct: (target, given, made) => Reflect.construct(target, given.length === 0 ? [now()] : given, made),
  get: (target, key) => (key === 'now' ? now : Reflect.get(target, key)),
});

if (isMainThread) {
  process.on('message', (question: { aheadMs?: number }) => {
    if (question.aheadMs === undefined) return;
    aheadMs = question.aheadMs;
    process.send?.({ aheadMs });
  });
  // The listener must not keep a stopped service alive.
  process.channel?.unref();
}
