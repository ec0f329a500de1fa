/** fastify as every HTTP listener of ours uses it: typed by the schemas, a problem document for whatever fails. */
import type { AddressInfo } from 'node:net';
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import { type FastifyHttpOptions, fastify, type RawServerDefault } from 'fastify';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { makeProblemSender } from './errors.ts';

export type App = ReturnType<typeof makeApp>;

export function makeApp(log: Log, options: FastifyHttpOptions<RawServerDefault> = {}) {
  const sendProblem = makeProblemSender(log);
  const app = fastify({ ...options, frameworkErrors: sendProblem });
  app.setErrorHandler(sendProblem);
  return app.withTypeProvider<TypeBoxTypeProvider>();
}

/** Returns the URL. `setting` is what the operator changes when the port cannot be opened. */
export async function listen(app: App, host: string, port: number, setting: string): Promise<string> {
  try {
    await app.listen({ host, port });
  } catch (error) {
    const cause = error as NodeJS.ErrnoException;
    const advice = adviseOn(cause.code ?? '', host, port, setting);
    throw advice ? new OperatorError(advice, { cause }) : cause;
  }
  const address = app.server.address() as AddressInfo;
  const name = ['127.0.0.1', '0.0.0.0', '::1', '::'].includes(host) ? 'localhost' : host;
  return `http://${name}:${address.port}`;
}

function adviseOn(code: string, host: string, port: number, setting: string): string | undefined {
  const noAddress = `HOST=${host} is not an address of this machine.`;
  const advice: Record<string, string> = {
    EADDRINUSE: `Port ${port} on ${host} is in use by another program. Stop it, or set ${setting} to another port.`,
    EACCES: `Port ${port} needs privileges that this process lacks. Set ${setting} to a port above 1023.`,
    EADDRNOTAVAIL: noAddress,
    ENOTFOUND: noAddress,
  };
  return advice[code];
}
