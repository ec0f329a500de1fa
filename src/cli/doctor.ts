/** `posthorn doctor`: checks everything that a start needs, and says how to fix each problem. */
import { randomBytes } from 'node:crypto';
import { Resolver } from 'node:dns/promises';
import { createServer, isIP } from 'node:net';
import { type Command, InvalidArgumentError } from 'commander';
import { type Config, readConfig } from '../config.ts';
import { makeLinks } from '../contract/links.ts';
import { only, type Pool } from '../db/client.ts';
import { hasCluster } from '../db/embedded/cluster.ts';
import { readSchemaState } from '../db/migrate.ts';
import { openDatabase } from '../db/open.ts';
import { posthorn } from '../lib/command-line.ts';
import { newId } from '../lib/ids.ts';
import { makeLog } from '../lib/log.ts';
import { loadSecretKeys, makeSealer } from '../lib/secrets.ts';
import { listLocalRoles } from '../store/processes.ts';
import { countSealedByKey, describeMissingKeys } from '../store/sealed-secrets.ts';
import { addCommand, print } from './database-tool.ts';
import {
  type CheckResult,
  describeFindings,
  type Finding,
  fail,
  messageOf,
  ok,
  runCheck,
  warn,
} from './findings.ts';

export function addDoctor(program: Command): void {
  addCommand(program, 'doctor', 'check the database, schema, secret key, ports, DNS and clock')
    .option('--sending', 'check instead what outgoing mail needs: transport, DNS records, certificate')
    .option('--to <domain>', 'with --sending: connect to the mail server of this domain', 'gmail.com')
    .option(
      '--address <ip>',
      'with --sending: the public address of outgoing mail, if it is behind NAT',
      readIp,
    )
    .action(async (options) => {
      const findings = await diagnose(process.env, options);
      print(options, findings, describeFindings(findings));
      if (findings.some((finding) => finding.level === 'fail')) process.exitCode = 1;
    });
}

function readIp(given: string): string {
  if (isIP(given) === 0) throw new InvalidArgumentError('Write an IP address such as 203.0.113.5.');
  return given;
}

async function diagnose(
  environment: Record<string, string | undefined>,
  options: { sending?: true; to: string; address?: string },
): Promise<Finding[]> {
  let config: Config;
  try {
    config = readConfig(environment);
  } catch (error) {
    return [{ check: 'configuration', ...fail(messageOf(error), 'See docs/config.md.') }];
  }
  const mode = config.production ? 'production' : 'development';
  const findings: Finding[] = [{ check: 'configuration', ...ok(`${mode} mode`) }];
  if (options.sending) {
    // Imported here because it doubles what a command loads, and no other command needs it.
    const { diagnoseSending } = await import('./doctor-sending.ts');
    return [...findings, ...(await diagnoseSending(config, options))];
  }
  const database = await diagnoseDatabase(config);
  findings.push(...database.findings);
  findings.push(await runCheck('port', checkPort(config)));
  if (config.roles.includes('smtp'))
    findings.push(...(await checkMailPorts(config, database.runningRoles.includes('smtp'))));
  findings.push(await runCheck('dns', checkDns(config)));
  return findings;
}

/** `runningRoles`: what the processes of this database do on this machine. */
async function diagnoseDatabase(config: Config): Promise<{ findings: Finding[]; runningRoles: string[] }> {
  const { databaseUrl, dataDir } = config;
  if (databaseUrl === null && !hasCluster(dataDir)) {
    const remedy =
      'The first start creates the database. If the database should exist, check POSTHORN_DATA_DIR.';
    const finding = { check: 'database', ...warn(`no database in ${dataDir} yet`, remedy) };
    return { findings: [finding], runningRoles: [] };
  }
  const log = makeLog({ level: 'silent', json: false });
  // A start waits for the server without a limit.
  const timeout = AbortSignal.timeout(5000);
  try {
    const database = await openDatabase(config, { purpose: 'tool', log, max: 1, signal: timeout });
    try {
      const findings = [
        await runCheck('database', checkVersion(database.sql, config)),
        await runCheck('schema', checkSchema(database.sql)),
        await runCheck('secret key', checkSecretKey(database.sql, config)),
        await runCheck('clock', checkClock(database.sql)),
      ];
      // A database without the schema has no processes.
      return { findings, runningRoles: await listLocalRoles(database.sql).catch(() => []) };
    } finally {
      await database.close();
    }
  } catch (error) {
    const remedy = databaseUrl
      ? 'Check DATABASE_URL, and that the server runs.'
      : 'Fix the cause that the message names.';
    const finding = { check: 'database', ...fail(messageOf(error), remedy) };
    return { findings: [finding], runningRoles: [] };
  }
}

async function checkVersion(sql: Pool, config: Config): Promise<CheckResult> {
  const { version } = only(await sql`select current_setting('server_version') as version`);
  return ok(
    `PostgreSQL ${version}, ${config.databaseUrl ? 'from DATABASE_URL' : `embedded in ${config.dataDir}`}`,
  );
}

async function checkSchema(sql: Pool): Promise<CheckResult> {
  const { version, pending, newer } = await readSchemaState(sql);
  if (newer)
    return fail(`version ${version} is newer than this Posthorn supports`, 'Run the newer Posthorn.');
  if (pending.length > 0)
    return warn(`${pending.join(', ')} not applied`, `Start the service, or run: ${posthorn} migrate`);
  return ok(`version ${version}, up to date`);
}

async function checkSecretKey(sql: Pool, config: Config): Promise<CheckResult> {
  const sealer = makeSealer(loadSecretKeys(config));
  const counts = await countSealedByKey(sql);
  if (counts.length === 0) return ok('present; no secret is stored yet');
  const missing = describeMissingKeys(sealer, counts);
  if (missing !== null)
    return fail(missing, 'Add the previous key to POSTHORN_SECRET_KEY, after the new key and a comma.');
  const older = counts
    .filter(({ keyId }) => keyId !== sealer.keyIds[0])
    .reduce((sum, { count }) => sum + count, 0);
  if (older === 0) return ok('decrypts all stored secrets');
  return ok(`decrypts all stored secrets; ${older} use an older key (to renew them: ${posthorn} reseal)`);
}

async function checkClock(sql: Pool): Promise<CheckResult> {
  const { now } = only(
    await sql<{ now: number }[]>`select extract(epoch from clock_timestamp())::float8 as now`,
  );
  const differenceSeconds = Math.round(Math.abs(Date.now() / 1000 - now));
  if (differenceSeconds <= 5) return ok('agrees with the clock of the database');
  return warn(
    `differs by ${differenceSeconds} s from the clock of the database`,
    'Run NTP on both machines.',
  );
}

async function checkPort(config: Config): Promise<CheckResult> {
  const { host, port } = config;
  const address = `${host}:${port}`;
  if (port === 0 || (await canListen(host, port))) return ok(`${address} is free`);
  const code = await readProblemCode(linkToNothing(config));
  if (code === 'not_found') return ok(`this Posthorn uses ${address}`);
  const remedy = 'Stop it, or set PORT.';
  if (code !== null) return warn(`another Posthorn uses ${address}`, remedy);
  return fail(`another program uses ${address}`, remedy);
}

/** A link to no message, signed with our key: 404 from our service, and 403 from a Posthorn with another key. */
function linkToNothing(config: Config): string {
  const { host, port, basePath, secretKeys, databaseUrl, dataDir } = config;
  const hasKeys = secretKeys !== null || databaseUrl !== null || hasCluster(dataDir);
  const keys = hasKeys ? loadSecretKeys(config) : [randomBytes(32)];
  const origin = `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
  return makeLinks(keys, () => `${origin}${basePath}`).to(newId(), Date.now()).raw;
}

/** Null: not an error of a Posthorn. */
async function readProblemCode(url: string): Promise<string | null> {
  const document = await fetch(url, { signal: AbortSignal.timeout(2000) })
    .then((response) => response.json() as Promise<{ type?: unknown }>)
    .catch(() => null);
  return /^urn:posthorn:problem:(\w+)$/.exec(String(document?.type))?.[1] ?? null;
}

async function checkMailPorts(config: Config, isRunning: boolean): Promise<Finding[]> {
  const ports: [string, number | null, string][] = [
    ['mail port', config.smtpPort, 'POSTHORN_SMTP_PORT'],
    ['submission port', config.submissionPort, 'POSTHORN_SUBMISSION_PORT'],
    ['submission port (TLS)', config.submissionsPort, 'POSTHORN_SUBMISSIONS_PORT'],
  ];
  const findings: Finding[] = [];
  for (const [check, port, setting] of ports)
    if (port !== null)
      findings.push(await runCheck(check, checkMailPort(config.smtpHost, port, setting, isRunning)));
  return findings;
}

async function checkMailPort(
  host: string,
  port: number,
  setting: string,
  isRunning: boolean,
): Promise<CheckResult> {
  const address = `${host}:${port}`;
  if (port === 0 || (await canListen(host, port))) return ok(`${address} is free`);
  if (isRunning) return ok(`this Posthorn uses ${address}`);
  return warn(`another program uses ${address}`, `Stop it, or set ${setting}.`);
}

function canListen(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen({ host, port }, () => server.close(() => resolve(true)));
  });
}

async function checkDns({ dnsServers }: Config): Promise<CheckResult> {
  const resolver = new Resolver({ timeout: 2000, tries: 1 });
  if (dnsServers) resolver.setServers([...dnsServers]);
  const servers = resolver.getServers().join(', ');
  try {
    await resolver.resolveNs('.');
    return ok(`${servers} answers`);
  } catch (error) {
    return warn(
      `${servers || 'no resolver'}: ${messageOf(error)}`,
      'Posthorn cannot resolve webhook targets and domains. Set POSTHORN_DNS_SERVERS to resolvers that answer.',
    );
  }
}
