/** Runs the CLI and `npm start` as child processes, with their output and exit code. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { waitFor } from './harness.ts';
import { copyCluster } from './own-postgres.ts';

export const root = path.dirname(import.meta.dirname);

export interface Program {
  child: ChildProcess;
  pid: number;
  /** stdout and stderr so far. */
  output(): string;
  /** Waits for a line that matches, and returns the match. */
  line(pattern: RegExp): Promise<RegExpExecArray>;
  /** Resolves at the end of the process with the exit code or the signal. */
  ended: Promise<number | NodeJS.Signals | null>;
}

type Environment = Record<string, string | undefined>;

/** The environment of the machine without settings of Posthorn, and with the settings of the test. */
function environment(settings: Environment): Environment {
  const kept = Object.entries(process.env).filter(
    ([name]) => !/^(POSTHORN_|OTEL_|TEST_|NODE_TEST|npm_|DATABASE_URL|PORT|HOST$)/.test(name),
  );
  // The default port of development can be used by one process only.
  return { ...Object.fromEntries(kept), POSTHORN_SUBMISSION_PORT: '0', ...settings };
}

export function run(
  command: string,
  args: string[],
  settings: Environment,
  options: { cwd?: string } = {},
): Program {
  const child = spawn(command, args, {
    cwd: options.cwd ?? root,
    env: environment(settings) as NodeJS.ProcessEnv,
    stdio: ['ignore', 'pipe', 'pipe'],
    // In its own process group, as in a terminal.
    detached: true,
  });
  let text = '';
  const collect = (chunk: Buffer) => {
    text += chunk;
  };
  child.stdout?.on('data', collect);
  child.stderr?.on('data', collect);
  const ended = new Promise<number | NodeJS.Signals | null>((resolve) => {
    child.on('close', (code, signal) => resolve(code ?? signal));
  });
  let over = false;
  ended.then(() => {
    over = true;
  });
  return {
    child,
    pid: child.pid ?? 0,
    output: () => text,
    ended,
    line: (pattern) =>
      waitFor(
        `${pattern} from ${command} ${args.join(' ')}`,
        () => {
          const found = pattern.exec(text);
          if (!found && over) throw new Error(`Ended without printing ${pattern}:\n${text}`);
          return found;
        },
        120_000,
      ),
  };
}

export function startNpm(settings: Environment): Program {
  return run('npm', ['start'], { PORT: '0', POSTHORN_SMTP_PORT: '0', ...settings });
}

/** Runs a CLI command to its end. */
export async function posthorn(
  args: string[],
  settings: Environment,
  cwd = root,
): Promise<{ code: unknown; output: string }> {
  const program = run(process.execPath, ['src/cli/posthorn.ts', ...args], settings, { cwd });
  const code = await program.ended;
  return { code, output: program.output() };
}

/** Waits until the service prints that it is ready, and returns its URL. */
export async function readyUrl(program: Program): Promise<string> {
  const [, url = ''] = await program.line(/is ready: (http:\S+)/);
  return url;
}

export function makeFolder(): { path: string; remove(): void } {
  const folder = mkdtempSync(path.join(tmpdir(), 'posthorn with space '));
  return { path: folder, remove: () => rmSync(folder, { recursive: true, force: true }) };
}

/** A data folder with a prepared PostgreSQL cluster that was never started. */
export function makeDataFolder(): ReturnType<typeof makeFolder> {
  const folder = makeFolder();
  copyCluster(folder.path);
  return folder;
}

/** The pid of the PostgreSQL of a data folder, if it runs. */
export function postgresPid(dataDir: string): number | undefined {
  const file = path.join(dataDir, 'postgres/postmaster.pid');
  return existsSync(file) ? Number(readFileSync(file, 'utf8').split('\n', 1)[0]) : undefined;
}
