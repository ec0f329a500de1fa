/** `posthorn doctor`: looks at everything a start needs, and says for each thing found wrong what to do about it. */
import { Resolver } from 'node:dns/promises';
import { createServer } from 'node:net';
import type { Command } from 'commander';
import { type Config, readConfig } from '../config.ts';
import { only, type Pool } from '../db/client.ts';
import { hasCluster } from '../db/embedded/cluster.ts';
import { readSchemaState } from '../db/migrate.ts';
import { openDatabase } from '../db/open.ts';
import { makeLog } from '../lib/log.ts';
import { loadSecretKeys, makeSealer } from '../lib/secrets.ts';
import { countSealedByKey, describeMissingKeys } from '../store/sealed-secrets.ts';
import { print } from './database-tool.ts';

interface Finding {
  check: string;
  level: 'ok' | 'warn' | 'fail';
  detail: string;
  remedy?: string;
}

type Result = Omit<Finding, 'check'>;

const ok = (detail: string): Result => ({ level: 'ok', detail });
const warn = (detail: string, remedy: string): Result => ({ level: 'warn', detail, remedy });
const fail = (detail: string, remedy: string): Result => ({ level: 'fail', detail, remedy });

export function addDoctor(program: Command): void {
  program
    .command('doctor')
    .description('check the database, schema, secret key, ports, DNS and clock')
    .option('--json', 'print JSON')
    .action(async (options) => {
      const findings = await diagnose(process.env);
      print(options, findings, describeFindings(findings));
      if (findings.some((finding) => finding.level === 'fail')) process.exitCode = 1;
    });
}

async function diagnose(environment: Record<string, string | undefined>): Promise<Finding[]> {
  let config: Config;
  try {
    config = readConfig(environment);
  } catch (error) {
    return [{ check: 'configuration', ...fail(messageOf(error), 'See docs/config.md.') }];
  }
  const mode = config.production ? 'production' : 'development';
  const findings: Finding[] = [{ check: 'configuration', ...ok(`${mode} mode`) }];
  findings.push(...(await diagnoseDatabase(config)));
  findings.push(await run('port', checkPort(config)));
  if (config.roles.includes('smtp')) findings.push(await run('mail port', checkMailPort(config)));
  findings.push(await run('dns', checkDns(config)));
  return findings;
}

async function diagnoseDatabase(config: Config): Promise<Finding[]> {
  const { databaseUrl, dataDir } = config;
  if (databaseUrl === null && !hasCluster(dataDir)) {
    const remedy = 'The first start makes it. If there should be one, POSTHORN_DATA_DIR leads elsewhere.';
    return [{ check: 'database', ...warn(`there is none in ${dataDir} yet`, remedy) }];
  }
  const log = makeLog({ level: 'silent', json: false });
  // A server that is away is worth waiting for at a start, but not here.
  const patience = AbortSignal.timeout(5000);
  try {
    const database = await openDatabase(config, { purpose: 'tool', log, max: 1, signal: patience });
    try {
      return [
        await run('database', checkVersion(database.sql, config)),
        await run('schema', checkSchema(database.sql)),
        await run('secret key', checkSecretKey(database.sql, config)),
        await run('clock', checkClock(database.sql)),
      ];
    } finally {
      await database.close();
    }
  } catch (error) {
    const remedy = databaseUrl ? 'Check DATABASE_URL and that the server runs.' : 'See the message.';
    return [{ check: 'database', ...fail(messageOf(error), remedy) }];
  }
}

async function run(check: string, result: Promise<Result>): Promise<Finding> {
  try {
    return { check, ...(await result) };
  } catch (error) {
    return { check, level: 'fail', detail: messageOf(error) };
  }
}

async function checkVersion(sql: Pool, config: Config): Promise<Result> {
  const { version } = only(await sql`select current_setting('server_version') as version`);
  return ok(`PostgreSQL ${version}, ${config.databaseUrl ? 'yours' : `embedded in ${config.dataDir}`}`);
}

async function checkSchema(sql: Pool): Promise<Result> {
  const { version, pending, newer } = await readSchemaState(sql);
  if (newer) return fail(`version ${version} is newer than this Posthorn`, 'Run the newer Posthorn.');
  if (pending.length > 0)
    return warn(`lacks ${pending.join(', ')}`, 'The next start applies it, or: posthorn migrate');
  return ok(`version ${version}, up to date`);
}

async function checkSecretKey(sql: Pool, config: Config): Promise<Result> {
  const sealer = makeSealer(loadSecretKeys(config));
  const counts = await countSealedByKey(sql);
  if (counts.length === 0) return ok('present; nothing is encrypted under it yet');
  const fault = describeMissingKeys(sealer, counts);
  if (fault !== null) {
    const remedy =
      'Put the key that was used before into POSTHORN_SECRET_KEY, after the new one with a comma.';
    return fail(fault, remedy);
  }
  const older = counts
    .filter(({ keyId }) => keyId !== sealer.keyIds[0])
    .reduce((sum, { count }) => sum + count, 0);
  if (older === 0) return ok('opens the stored secrets');
  return ok(`opens the stored secrets; ${older} are under an older key (posthorn reseal)`);
}

async function checkClock(sql: Pool): Promise<Result> {
  const { now } = only(
    await sql<{ now: number }[]>`select extract(epoch from clock_timestamp())::float8 as now`,
  );
  const offSeconds = Math.round(Math.abs(Date.now() / 1000 - now));
  if (offSeconds <= 5) return ok("agrees with the database's");
  return warn(`is ${offSeconds} s away from the database's`, 'Run NTP on both machines.');
}

async function checkPort({ host, port, basePath }: Config): Promise<Result> {
  if (port === 0 || (await canListen(host, port))) return ok(`${host}:${port} is free`);
  const origin = `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
  const document = await fetch(`${origin}${basePath}/openapi.json`, { signal: AbortSignal.timeout(2000) })
    .then((answer) => answer.json() as Promise<{ info?: { title?: string } }>)
    .catch(() => null);
  if (document?.info?.title === 'Posthorn') return ok(`a Posthorn answers on ${host}:${port}`);
  return fail(`${host}:${port} is in use`, 'Stop that program, or set PORT.');
}

async function checkMailPort({ smtpHost, smtpPort }: Config): Promise<Result> {
  const place = `${smtpHost}:${smtpPort}`;
  if (smtpPort === 0 || (await canListen(smtpHost, smtpPort))) return ok(`${place} is free`);
  return warn(
    `${place} is in use, which is right if it is by a Posthorn that runs`,
    'Else stop that program, or set POSTHORN_SMTP_PORT.',
  );
}

function canListen(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen({ host, port }, () => server.close(() => resolve(true)));
  });
}

async function checkDns({ dnsServers }: Config): Promise<Result> {
  const resolver = new Resolver({ timeout: 2000, tries: 1 });
  if (dnsServers) resolver.setServers([...dnsServers]);
  const asked = resolver.getServers().join(', ');
  try {
    await resolver.resolveNs('.');
    return ok(`${asked} answers`);
  } catch (error) {
    return warn(
      `${asked || 'no resolver'}: ${messageOf(error)}`,
      'Webhook targets and domains cannot be looked up. Set POSTHORN_DNS_SERVERS to resolvers that answer.',
    );
  }
}

const marks = { ok: '✓', warn: '!', fail: '✗' };

function describeFindings(findings: Finding[]): string {
  return findings
    .map(({ check, level, detail, remedy }) => {
      const line = `${marks[level]} ${check.padEnd(13)} ${detail}`;
      return remedy ? `${line}\n  → ${remedy}` : line;
    })
    .join('\n');
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
