/**
 * V8 collects garbage when its own heap has grown, and buffers are outside of that heap: large messages, which are read and
 * written in pieces of some hundred KB, left 80 MB of garbage before V8 collected it. Code that drops such pieces counts them.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

const collectAtBytes = 4 * 1024 * 1024;
let dropped = 0;

setFlagsFromString('--expose-gc');
const collect: (options: { type: 'minor' }) => void = runInNewContext('gc');
setFlagsFromString('--no-expose-gc');

/** Every 4 MiB this starts a minor collection, which takes about a millisecond. */
export function countDropped(bytes: number): void {
  dropped += bytes;
  if (dropped < collectAtBytes) return;
  dropped = 0;
  collect({ type: 'minor' });
}
