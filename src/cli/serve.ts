/** `posthorn serve`: runs the service until a signal arrives or the launcher ends. */
import { once } from 'node:events';
import type { Command } from 'commander';
import { type Config, readConfig } from '../config.ts';
import { posthorn } from '../lib/command-line.ts';
import { gatherLines, type Log, makeLog } from '../lib/log.ts';
import { readVersion } from '../lib/version.ts';
import type { Service } from '../main.ts';

export function addServe(program: Command): void {
  program.command('serve').description('run the service').action(serve);
}

async function serve(): Promise<void> {
  const config = readConfig(process.env);
  const log = openLog(config);
  log.info(`starting Posthorn ${readVersion()} …`);
  for (const name of config.unknown) log.warn(`${name} is not a Posthorn setting and has no effect`);
  // The reader of our log may close the pipe (`npm start | head`); the service keeps running.
  process.stdout.on('error', () => {});
  const stopping = new AbortController();
  const stop = () => stopping.abort();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, stop);
  // The launcher was killed.
  process.on('disconnect', stop);
  process.channel?.unref();

  // Only here: the service is three quarters of the code to load, and every other command would load it too.
  const { startService } = await import('../main.ts');
  const service = await startService(config, log, {
    signal: stopping.signal,
    announce: (service) => announce(service, config, log),
  });
  if (!stopping.signal.aborted) await once(stopping.signal, 'abort');
  log.info('stopping');
  await service.stop();
  log.info('stopped');
  // The last export to a collector that does not answer would keep the process alive for seconds.
  if (config.traces) process.exit();
}

function openLog({ logLevel, logFormat, logAddresses, roles }: Config): Log {
  const stream = gatherLines(process.stdout);
  process.on('exit', stream.flush);
  const format = logFormat ?? (process.stdout.isTTY ? 'pretty' : 'json');
  const base = { service: 'posthorn', role: roles.join(','), pid: process.pid };
  return makeLog({ level: logLevel, json: format === 'json', stream, base, addresses: logAddresses });
}

function announce(service: Service, config: Config, log: Log): void {
  const url = `${service.url}${config.basePath}`;
  // The link contains a secret, and JSON logs are often stored. So the link is never in one.
  const showsLink = config.logFormat !== 'json';
  if (service.needsUser)
    log.warn(`There is no user yet. Create one: ${posthorn} users create --email you@example.com`);
  if (service.firstUser)
    process.stdout.write(firstStartBlock(service.firstUser, url, showsLink ? service.signInLink : null));
  if (!config.production) {
    log.info(
      'development mode: webhooks may use http and loopback, and unverified identities receive mail; ' +
        'set NODE_ENV=production for strict defaults',
    );
  }
  log.info(
    service.url === null
      ? `Posthorn ${readVersion()} is ready: ${config.roles.join(', ')}`
      : `Posthorn ${readVersion()} is ready: ${url} (docs: ${url}/docs)`,
  );
  if (service.signInLink && showsLink && !service.firstUser)
    process.stdout.write(`Sign in to the dashboard (once, within 10 minutes): ${service.signInLink}\n`);
  if (service.signInLink && !showsLink)
    log.info(`to sign in to the dashboard, print a link: ${posthorn} sign-in-link`);
  if (service.smtpPort !== null)
    log.info(`the SMTP listener accepts mail on port ${service.smtpPort} of ${config.smtpHost}`);
  if (config.outbound === 'capture' && config.roles.includes('send'))
    log.info('outgoing mail is captured and does not leave this machine (POSTHORN_OUTBOUND=capture)');
  const ports = [service.submissionPort, service.submissionsPort].filter((port) => port !== null);
  if (ports.length > 0)
    log.info(
      `programs can submit mail on port ${ports.join(' and ')} of ${config.smtpHost}, with an API key`,
    );
}

function firstStartBlock(
  { email, apiKey }: { email: string; apiKey: string },
  url: string,
  signInLink: string | null,
): string {
  const dashboard = [
    'Open the dashboard. This link signs you in, once, within 10 minutes:',
    '',
    `  ${signInLink}`,
    '',
  ];
  const lines = [
    `First start: created the user ${email}.`,
    '',
    ...(signInLink === null ? [] : dashboard),
    'Its API key, which is shown only once:',
    '',
    `  ${apiKey}`,
    '',
    `  curl ${url}/me \\`,
    `    -H "Authorization: Bearer ${apiKey}"`,
  ];
  // Nothing at the sides, and at most 80 columns: a command can be copied.
  const rule = '─'.repeat(80);
  return [rule, ...lines, rule, ''].join('\n');
}
