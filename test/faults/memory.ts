/** Watches how much memory a service takes while something bad is done to it. */
import type { Server } from './server.ts';

const sampleMs = 50;

export interface MemoryWatch {
  /** The most, beyond what it was at the start, in MB. */
  growthMb(): number;
  tell(): string;
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
    tell: () => `resident memory ${atFirst} MB, at most ${most} MB, in the end ${server.memoryMb()} MB`,
    stop: () => clearInterval(timer),
  };
}
