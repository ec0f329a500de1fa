/** What processes have used, as Linux tells it in /proc. */
import { readFileSync } from 'node:fs';

/** Peak and present, in MB of a million bytes. */
export function readMemory(pid: number): { peak: number; now: number } {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const read = (key: string) =>
    (Number(new RegExp(`^${key}:\\s+(\\d+) kB`, 'm').exec(status)?.[1]) * 1024) / 1e6;
  return { peak: read('VmHWM'), now: read('VmRSS') };
}
