/**
 * V8 collects garbage when its own heap has grown. Bytes lie outside of it, so large messages, which are read and written in
 * pieces of some hundred KB, left 80 MB of pieces behind before V8 looked. Whoever handles such pieces counts them here.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

const collectAtBytes = 4 * 1024 * 1024;
let dropped = 0;

setFlagsFromString('--expose-gc');
const collect: (options: { type: 'minor' }) => void = runInNewContext('gc');
setFlagsFromString('--no-expose-gc');

/** A piece of this size is no longer needed. Now and then this collects what is young, which takes about a millisecond. */
export function countDropped(bytes: number): void {
  dropped += bytes;
  if (dropped < collectAtBytes) return;
  dropped = 0;
  collect({ type: 'minor' });
}
