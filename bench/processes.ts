/**
 * Child processes of the bench. Each ends with its scenario; if the bench itself is killed, its end of the IPC channel
 * closes, which the service and the controls take as their signal to stop.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { settings } from '../src/config.ts';
import type { Bench } from './scenario.ts';

export interface Child {
  pid: number;
  /** The first match in what it has printed, once there is one. */
  printed(pattern: RegExp): Promise<RegExpExecArray>;
  /** Sends a message and waits for the one that comes back. */
  ask(question: unknown): Promise<unknown>;
}

const patienceMs = 15_000;

/** Runs a program on this Node, with these settings and no others of Posthorn's. */
export function startChild(
  bench: Bench,
  program: URL,
  args: readonly string[],
  given: Record<string, string> = {},
  flags: readonly string[] = [],
): Child {
  const child = spawn(process.execPath, [...flags, fileURLToPath(program), ...args], {
    env: { ...environmentWithoutSettings(), ...given },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    // A group of its own: Ctrl-C reaches the bench alone, which ends its children in the right order.
    detached: true,
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding('utf8').on('data', (text) => {
      output += text;
      child.emit('output');
    });
  }
  bench.defer(() => stop(child));

  /** Tries again at each such event, until it succeeds, the child ends or Ctrl-C is pressed. */
  function on<T>(event: 'output' | 'message', take: (message?: unknown) => T | null): Promise<T> {
    return new Promise((resolve, reject) => {
      const end = () =>
        reject(new Error(`${fileURLToPath(program)} ended too early. It printed:\n${output}`));
      const abort = () => reject(bench.signal.reason);
      const look = (message?: unknown) => {
        const taken = take(message);
        if (taken === null) return;
        child.off(event, look).off('close', end).off('error', reject);
        bench.signal.removeEventListener('abort', abort);
        resolve(taken);
      };
      child.on(event, look).on('close', end).on('error', reject);
      bench.signal.addEventListener('abort', abort);
      if (hasEnded(child)) end();
      else if (event === 'output') look();
    });
  }

  return {
    pid: child.pid ?? 0,
    printed: (pattern) => on('output', () => pattern.exec(output)),
    ask(question) {
      const answer = on('message', (message) => message);
      // That it is gone shows in the answer.
      child.send(question as object, () => {});
      return answer;
    },
  };
}

async function stop(child: ChildProcess): Promise<void> {
  if (hasEnded(child)) return;
  const ended = new Promise((resolve) => child.on('exit', resolve));
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), patienceMs);
  await ended;
  clearTimeout(timer);
}

function hasEnded(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null || child.pid === undefined;
}

/** A DATABASE_URL of the person who runs the bench is not to be filled with its rows. */
function environmentWithoutSettings(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !(name in settings)));
}
