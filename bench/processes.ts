/**
 * Child processes of the bench. Each ends with its scenario. When the bench itself is killed, the IPC channel closes, and
 * the service and the controls stop.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { settings } from '../src/config.ts';
import type { DnsRecords } from './dns.control.ts';
import type { Bench } from './scenario.ts';

export interface Child {
  pid: number;
  /** Waits for the first match in the output of the process. */
  printed(pattern: RegExp): Promise<RegExpExecArray>;
  /** Sends a message and waits for the reply. */
  ask(question: unknown): Promise<unknown>;
}

const patienceMs = 15_000;

/** Runs a program on this Node, with these settings of Posthorn only. */
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
    // In its own process group: Ctrl-C reaches only the bench, which ends its children in the right order.
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

  /** Retries at each such event until it succeeds, the child ends or Ctrl-C is pressed. */
  function on<T>(event: 'output' | 'message', take: (message?: unknown) => T | null): Promise<T> {
    return new Promise((resolve, reject) => {
      const end = () =>
        reject(new Error(`${fileURLToPath(program)} ended too early. It printed:\n${output}`));
      const abort = () =>
        reject(new Error(`Stopped while ${fileURLToPath(program)} was awaited. It printed:\n${output}`));
      const check = (message?: unknown) => {
        const taken = take(message);
        if (taken === null) return;
        child.off(event, check).off('close', end).off('error', reject);
        bench.signal.removeEventListener('abort', abort);
        resolve(taken);
      };
      child.on(event, check).on('close', end).on('error', reject);
      bench.signal.addEventListener('abort', abort);
      if (hasEnded(child)) end();
      else if (event === 'output') check();
    });
  }

  return {
    pid: child.pid ?? 0,
    printed: (pattern) => on('output', () => pattern.exec(output)),
    ask(question) {
      const answer = on('message', (message) => message);
      // If the process has ended, the wait for the reply reports it.
      child.send(question as object, () => {});
      return answer;
    },
  };
}

/** Starts a DNS server with these records; returns its address. */
export async function startDnsServer(bench: Bench, records: DnsRecords): Promise<string> {
  const child = startChild(bench, new URL('./dns.control.ts', import.meta.url), []);
  return String(await child.ask(records));
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

/** The bench must not write into the DATABASE_URL of the person who runs it. */
function environmentWithoutSettings(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !(name in settings)));
}
