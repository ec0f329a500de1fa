/** How much memory is in use, whatever else ran in this process before. */
import v8 from 'node:v8';
import vm from 'node:vm';

v8.setFlagsFromString('--expose-gc');
const collectGarbage = vm.runInNewContext('gc') as () => void;

/** Bytes of the heap, without what is only waiting to be collected. */
export function readHeap(): number {
  collectGarbage();
  return process.memoryUsage().heapUsed;
}
