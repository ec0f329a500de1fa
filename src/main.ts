/**
 * Puts the service together: configuration → database → loops → doors, and takes it apart in the opposite order, the
 * database last.
 */
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import type { Config } from './config.ts';
import { prepareSchema } from './db/migrate.ts';
import { openDatabase } from './db/open.ts';
import { buildApp } from './http/app.ts';
import { makeMetrics } from './http/metrics.ts';
import { buildMetricsApp } from './http/metrics-door.ts';
import type { App, Services } from './http/services.ts';
import type { Log } from './lib/log.ts';
import { startLoop } from './lib/loop.ts';
import { OperatorError } from './lib/operator-error.ts';
import { makeSealer, readOrMakeKeyFile } from './lib/secrets.ts';
import { createApiKey } from './store/api-keys.ts';
import { purgeAnswers } from './store/idempotency.ts';
import { createFirstUser, type User } from './store/users.ts';

export interface Service {
  /** Where the API listens; null without the role `api`. */
  url: string | null;
  /** Made by the first start on an empty database, and to be shown this once. */
  firstUser: (User & { apiKey: string }) | null;
  /** Finishes what is under way and closes everything. Idempotent. */
  stop(): Promise<void>;
}

const poolSize = 10;
const purgeEveryMs = 10 * 60_000;

export async function startService(config: Config, log: Log, signal?: AbortSignal): Promise<Service> {
  const database = await openDatabase(config, {
    purpose: 'serve',
    log,
    max: poolSize,
    ...(signal ? { signal } : {}),
  });
  /** Everything started so far, closed in the opposite order. */
  const closing: (() => Promise<void>)[] = [() => database.close()];
  const stop = once(async () => {
    await database.announceStop();
    for (const close of closing.reverse()) await close();
  });

  try {
    const { sql } = database;
    await prepareSchema(sql, log, config);
    const sealer = makeSealer(loadSecretKeys(config));
    const services: Services = { config, sql, sealer, log, metrics: makeMetrics() };
    const firstUser = await makeFirstUser(services);

    const purge = startLoop({ name: 'purge', pollMs: purgeEveryMs, log, work: () => purgeAnswers(sql) });
    closing.push(() => purge.stop());

    let url: string | null = null;
    if (config.roles.includes('api')) {
      const app = await buildApp(services);
      closing.push(() => app.close());
      url = await listen(app, config.host, config.port, 'PORT');
    }
    if (config.metricsPort !== null) {
      const app = buildMetricsApp(services);
      closing.push(() => app.close());
      await listen(app, config.host, config.metricsPort, 'POSTHORN_METRICS_PORT');
    }
    return { url, firstUser, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** The operator's keys, or the one in the data folder of an embedded database. */
export function loadSecretKeys(config: Config): readonly Buffer[] {
  return config.secretKeys ?? [readOrMakeKeyFile(path.join(config.dataDir, 'secret.key'))];
}

async function makeFirstUser({ sql }: Services): Promise<Service['firstUser']> {
  return sql.begin(async (sql) => {
    const user = await createFirstUser(sql, 'admin@localhost');
    if (!user) return null;
    const { apiKey } = await createApiKey(sql, user.userId, { name: 'first start' });
    return { ...user, apiKey };
  });
}

async function listen(app: App, host: string, port: number, setting: string): Promise<string> {
  try {
    await app.listen({ host, port });
  } catch (cause) {
    throw explainListenError(cause as NodeJS.ErrnoException, host, port, setting);
  }
  const address = app.server.address() as AddressInfo;
  const name = ['127.0.0.1', '0.0.0.0', '::1', '::'].includes(host) ? 'localhost' : host;
  return `http://${name}:${address.port}`;
}

function explainListenError(
  cause: NodeJS.ErrnoException,
  host: string,
  port: number,
  setting: string,
): Error {
  const advice: Record<string, string> = {
    EADDRINUSE: `Port ${port} on ${host} is in use by another program. Stop it, or set ${setting} to another port.`,
    EACCES: `Port ${port} needs privileges that this process lacks. Set ${setting} to a port above 1023.`,
    EADDRNOTAVAIL: `HOST=${host} is not an address of this machine.`,
    ENOTFOUND: `HOST=${host} is not an address of this machine.`,
  };
  const message = advice[cause.code ?? ''];
  return message ? new OperatorError(message, { cause }) : cause;
}

function once(work: () => Promise<void>): () => Promise<void> {
  let done: Promise<void> | undefined;
  return () => {
    done ??= work();
    return done;
  };
}
