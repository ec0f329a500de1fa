/** `posthorn serve`: runs the service until a signal ends it, or until the launcher that started it is gone. */
import type { Command } from 'commander';
import { type Config, readConfig } from '../config.ts';
import { type Log, makeLog } from '../lib/log.ts';
import { readVersion } from '../lib/version.ts';
import { type Service, startService } from '../main.ts';

export function addServe(program: Command): void {
  program.command('serve').description('run the service').action(serve);
}

async function serve(): Promise<void> {
  const config = readConfig(process.env);
  const log = makeLog({ level: config.logLevel, json: config.production });
  for (const name of config.unknown) log.warn(`${name} is not a setting of Posthorn and has no effect`);
  // Whoever read our log may go (`npm start | head`); the service stays.
  process.stdout.on('error', () => {});
  const stopping = new AbortController();
  const stopped = new Promise<void>((resolve) => {
    const end = () => {
      stopping.abort();
      resolve();
    };
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, end);
    // The launcher was killed: what it started ends too.
    process.on('disconnect', end);
    process.channel?.unref();
  });

  const service = await startService(config, log, stopping.signal);
  announce(service, config, log);
  await stopped;
  log.info('stopping');
  await service.stop();
  log.info('stopped');
  // A collector that does not answer holds the last export for seconds more, and with it the process.
  if (config.traces) process.exit();
}

function announce(service: Service, config: Config, log: Log): void {
  const url = `${service.url}${config.basePath}`;
  if (service.firstUser) process.stdout.write(firstStartBlock(service.firstUser, url));
  if (!config.production) {
    log.info(
      'development mode: http and loopback targets are allowed, unverified identities receive mail; ' +
        'NODE_ENV=production is strict',
    );
  }
  log.info(
    service.url === null
      ? `Posthorn ${readVersion()} is ready: ${config.roles.join(', ')}`
      : `Posthorn ${readVersion()} is ready: ${url} (docs: ${url}/docs)`,
  );
  if (service.smtpPort !== null) log.info(`mail is taken on port ${service.smtpPort} of ${config.smtpHost}`);
}

function firstStartBlock({ email, apiKey }: { email: string; apiKey: string }, url: string): string {
  const lines = [
    `First start: made the user ${email} with this API key.`,
    '',
    `    ${apiKey}`,
    '',
    'It is shown this once. Try it:',
    `    curl ${url}/me -H "Authorization: Bearer ${apiKey}"`,
  ];
  const width = Math.max(...lines.map((line) => line.length));
  const rule = '─'.repeat(width + 2);
  return [`┌${rule}┐`, ...lines.map((line) => `│ ${line.padEnd(width)} │`), `└${rule}┘`, ''].join('\n');
}
