/**
 * `posthorn serve` in a process that can be killed and started again on the same ports, with its embedded PostgreSQL or another
 * one, and a connection to its database.
 */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { nodeFlags } from '../../bin/launch.js';
import { connect, type Pool } from '../../src/db/client.ts';
import { freePort } from '../own-postgres.ts';
import { makeFolder, type Program, postgresPid, run } from '../programs.ts';
import type { FaultRun } from './fault.ts';

export interface Server {
  url: string;
  smtpPort: number;
  /** Printed by the first start on a database; other processes on the same database get it as an option. */
  apiKey: string;
  /** Starts it and waits until it is ready. */
  start(): Promise<void>;
  /** Starts it and does not wait. */
  launch(): void;
  /** SIGTERM, and waits until it has ended. */
  stop(): Promise<void>;
  /** SIGKILL to the service only: its database keeps running. */
  kill(): Promise<void>;
  /** SIGKILL to the main process of the embedded PostgreSQL. */
  killDatabase(): void;
  /** Calls the API as the first user. */
  call(method: string, at: string, body?: unknown, headers?: Record<string, string>): Promise<Response>;
  look<T>(work: (sql: Pool) => Promise<T>): Promise<T>;
  /** Resident memory of the process, in MB. */
  memoryMb(): number;
  /** The errors in its log. */
  errors(): string[];
  isRunning(): boolean;
}

interface ServerOptions {
  settings?: Record<string, string>;
  /** Used instead of the embedded PostgreSQL. */
  databaseUrl?: string;
  /** Created when left out. */
  dataDir?: string;
  /** Called at each start. */
  nodeArguments?: () => string[];
}

export async function prepareServer(lent: FaultRun, options: ServerOptions = {}): Promise<Server> {
  const folder = options.dataDir ? { path: options.dataDir, remove: () => {} } : makeFolder();
  const [port, smtpPort] = [await freePort(lent.random), await freePort(lent.random)];
  const url = `http://127.0.0.1:${port}`;
  const { databaseUrl, settings = {}, nodeArguments = () => [] } = options;
  let program: Program | undefined;
  let isOver = false;

  lent.defer(async (clean) => {
    isOver = true;
    program?.child.kill('SIGTERM');
    await Promise.race([program?.ended, delay(20_000, undefined, { ref: false })]);
    program?.child.kill('SIGKILL');
    killPostmaster(folder.path);
    if (clean) folder.remove();
    else lent.log(`what is left of it: ${folder.path}\nits last lines: ${program?.output().slice(-4000)}`);
  });

  function launch(): void {
    // A fault that reached its time limit may still be running.
    if (isOver) throw new Error('The fault is over.');
    program = run(process.execPath, [...nodeFlags, ...nodeArguments(), 'src/cli/posthorn.ts', 'serve'], {
      PORT: String(port),
      POSTHORN_SMTP_PORT: String(smtpPort),
      POSTHORN_DATA_DIR: folder.path,
      POSTHORN_RATE_LIMIT: '0',
      // No DNS server listens there, so queries fail at once and no message waits for DNS.
      POSTHORN_DNS_SERVERS: '127.0.0.1:9',
      ...(databaseUrl ? { DATABASE_URL: databaseUrl, POSTHORN_SECRET_KEY: sharedKey } : {}),
      ...settings,
    });
  }

  const server: Server = {
    url,
    smtpPort,
    apiKey: '',
    launch,
    async start() {
      launch();
      await program?.line(/is ready/);
      const [, shown] = /(ph_[0-9A-Za-z]{38})/.exec(program?.output() ?? '') ?? [];
      server.apiKey = shown ?? server.apiKey;
    },
    async stop() {
      program?.child.kill('SIGTERM');
      await program?.ended;
    },
    async kill() {
      program?.child.kill('SIGKILL');
      await program?.ended;
    },
    killDatabase: () => killPostmaster(folder.path),
    call: (method, at, body, headers = {}) =>
      fetch(`${url}${at}`, {
        method,
        headers: {
          authorization: `Bearer ${server.apiKey}`,
          ...(body ? { 'content-type': 'application/json' } : {}),
          ...headers,
        },
        ...(body ? { body: JSON.stringify(body) } : {}),
      }),
    async look(work) {
      const address = databaseUrl ?? embeddedUrl(folder.path);
      const sql = connect(address, {
        max: 1,
        applicationName: 'posthorn faults',
        // A busy machine may take minutes to count what a hundred rounds have stored.
        ...{ statementTimeoutMs: 600_000, checkOutTimeoutMs: 600_000 },
      });
      try {
        return await work(sql);
      } finally {
        await sql.end({ timeoutMs: 1000 });
      }
    },
    memoryMb: () => readMemoryMb(program?.pid ?? 0),
    errors: () =>
      (program?.output() ?? '').split('\n').filter((line) => /"level":"(error|fatal)"/.test(line)),
    isRunning: () => program?.child.exitCode === null && program.child.signalCode === null,
  };
  return server;
}

/** The same for services that share a database. */
const sharedKey = Buffer.alloc(32, 'faults').toString('base64');

/** The URL of the embedded PostgreSQL of a data folder. */
export function embeddedUrl(dataDir: string): string {
  const folder = path.join(dataDir, 'postgres');
  const password = readFileSync(path.join(folder, 'posthorn.password'), 'utf8').trim();
  return `postgres://posthorn:${password}@localhost/posthorn?host=${encodeURIComponent(folder)}`;
}

function readMemoryMb(pid: number): number {
  const [, kilobytes] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return Math.round(Number(kilobytes) / 1024);
}

function killPostmaster(dataDir: string): void {
  const pid = postgresPid(dataDir);
  try {
    if (pid) process.kill(pid, 'SIGKILL');
  } catch {
    // The process has ended and left its pid file.
  }
}
