/** Watches the memory of a service during an attack. */
import type { Server } from './server.ts';

const sampleMs = 50;

export interface MemoryWatch {
  /** The peak above the start, in MB. */
  growthMb(): number;
  describe(): string;
  stop(): void;
}

export function watchMemory(server: Server): MemoryWatch {
  const atFirst = server.memoryMb();
  let most = atFirst;
  const timer = setInterval(() => {
    if (server.isRunning()) most = Math.max(most, server.memoryMb());
  }, sampleMs);
  return {
    growthMb: () => most - atFirst,
    describe: () => `resident memory ${atFirst} MB, peak ${most} MB, at the end ${server.memoryMb()} MB`,
    stop: () => clearInterval(timer),
  };
}
