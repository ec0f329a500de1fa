/**
 * The real service in its own process, on an empty database: embedded in a temporary folder, or on the server of `--against`. It
 * runs from the folder `bench.checkout`, with the Node options of that commit.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import net, { type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Pool } from '../src/db/client.ts';
import { importFrom } from './checkout.ts';
import { connectBench, joinEmbedded, makeDatabase } from './database.ts';
import { type Child, startChild } from './processes.ts';
import type { Bench } from './scenario.ts';

export interface BenchedService {
  pid: number;
  url: string;
  smtpPort: number;
  submissionPort: number;
  databaseUrl: string;
  ownerId: string;
  /** Request headers of its first user. */
  headers: { authorization: string; 'content-type': string };
  ask: Child['ask'];
}

/** What a scenario does before its service starts. */
export interface Preparation {
  /** More Node options for the service. */
  flags: readonly string[];
  /** Changes the empty database. */
  prepare(sql: Pool): Promise<void>;
}

/** The same for every service of a run, so that several services can use one database. */
const secretKey = randomBytes(32).toString('base64');

/** `settings` are additional settings of Posthorn for the scenario. */
export async function startService(
  bench: Bench,
  settings: Record<string, string> = {},
  preparation?: Preparation,
): Promise<BenchedService> {
  bench.log('starting the service on an empty database');
  const dataDir = mkdtempSync(path.join(tmpdir(), 'posthorn-bench-'));
  bench.defer(() => rmSync(dataDir, { recursive: true, force: true }));
  const elsewhere = bench.against && (await makeDatabase(bench, bench.against));
  let databaseUrl = elsewhere;
  if (preparation) {
    databaseUrl ??= await joinEmbedded(bench, dataDir);
    await preparation.prepare(connectBench(bench, databaseUrl));
  }
  const smtpPort = await findFreePort();
  const submissionPort = await findFreePort();
  const given = {
    POSTHORN_SMTP_PORT: String(smtpPort),
    POSTHORN_SUBMISSION_PORT: String(submissionPort),
    POSTHORN_DATA_DIR: dataDir,
    ...(elsewhere ? { DATABASE_URL: elsewhere } : {}),
    ...settings,
  };
  const child = await serve(bench, given, preparation?.flags);
  const [, port, apiKey] = await child.printed(
    /curl http:\/\/localhost:(\d+)\/me \\\s+-H "Authorization: Bearer (ph_\w+)"/,
  );
  databaseUrl ??= await joinEmbedded(bench, dataDir);
  const url = `http://127.0.0.1:${port}`;
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const { userId } = (await (await fetch(`${url}/me`, { headers })).json()) as { userId: string };
  const ports = { smtpPort, submissionPort };
  return { pid: child.pid, url, ...ports, databaseUrl, ownerId: userId, headers, ask: child.ask };
}

/** Starts another process with these roles on the database of a service. Returns its pid when it is ready. */
export async function startBeside(bench: Bench, service: BenchedService, roles: string): Promise<number> {
  const child = await serve(bench, {
    DATABASE_URL: service.databaseUrl,
    POSTHORN_ROLES: roles,
    POSTHORN_LOG_LEVEL: 'info',
  });
  await child.printed(/is ready/);
  return child.pid;
}

async function serve(
  bench: Bench,
  settings: Record<string, string>,
  more: readonly string[] = [],
): Promise<Child> {
  const { mallocSettings, nodeFlags } = await importFrom(bench.checkout, 'bin/launch.js');
  const given = {
    PORT: '0',
    POSTHORN_SUBMISSION_PORT: '0',
    POSTHORN_RATE_LIMIT: '0',
    POSTHORN_MAX_WEBHOOKS: '1000000',
    POSTHORN_MAX_ACCOUNTS: '1000000',
    POSTHORN_LOG_LEVEL: 'warn',
    POSTHORN_SECRET_KEY: secretKey,
    ...mallocSettings,
    ...settings,
  };
  const flags = [...nodeFlags, ...more, ...(bench.profiling?.flags ?? [])];
  const program = pathToFileURL(path.join(bench.checkout.folder, 'src/cli/posthorn.ts'));
  const child = startChild(bench, program, ['serve'], given, flags);
  bench.profiling?.watch(bench, child);
  return child;
}

/** The service does not print the port of its SMTP listener. */
async function findFreePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
