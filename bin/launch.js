/**
 * Runs a program on the Node that Posthorn pins (the npm package `node`), whatever Node started this file.
 * Plain JavaScript for Node 20, because it runs before the pinned one does.
 * The program ends when its launcher does: a killed `npm start` leaves no server behind that holds the port.
 */
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { constants } from 'node:os';
import path from 'node:path';

const neededMajor = 24;

/**
 * A heap that is swept when it has doubled, not when the machine runs out: under full delivery 236 MB are resident instead of
 * 440. Swept when it has grown by a third it is 213, but sweeping then takes a third of what a delivery costs.
 */
export const nodeFlags = ['--heap-growing-percent=100', '--max-semi-space-size=8'];

/**
 * glibc makes every thread a heap of its own and returns little of it; two are enough, and what is large comes from the system
 * and goes back to it. A message of 25 MiB, which goes through a thread, then takes 285 MB at its highest and 255 afterwards,
 * instead of 320 and 305.
 */
export const mallocSettings = {
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: '131072',
  MALLOC_TRIM_THRESHOLD_: '131072',
};

export function launch(file, args) {
  const launcher = process.ppid;
  const child = spawn(findNode(), [...nodeFlags, file, ...args], {
    stdio: ['inherit', 'inherit', 'inherit', 'ipc'],
    env: { ...mallocSettings, ...process.env },
  });

  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
  // npm killed with -9 passes nothing on; its death shows only in our parent having changed.
  if (process.env.npm_lifecycle_event) {
    setInterval(() => process.ppid !== launcher && child.kill('SIGTERM'), 250).unref();
  }
  child.on('error', (error) => stop(`Posthorn could not start ${child.spawnfile}: ${error.message}`));
  child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
}

function findNode() {
  try {
    const manifest = createRequire(import.meta.url).resolve('node/package.json');
    const binary = path.join(path.dirname(manifest), 'bin', 'node');
    if (existsSync(binary)) return binary;
  } catch {
    // Not installed (a platform without it, or install scripts were refused): ours may do.
  }
  if (Number(process.versions.node.split('.')[0]) >= neededMajor) return process.execPath;
  stop(
    `Posthorn runs on Node ${neededMajor}, and the npm package \`node\` that brings it is not installed ` +
      `(this is Node ${process.versions.node}).\nInstall again with install scripts allowed, or use Node ${neededMajor}.`,
  );
}

function stop(message) {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}
