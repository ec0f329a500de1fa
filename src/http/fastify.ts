/** fastify as every HTTP listener of ours uses it: typed by the schemas, a problem document for whatever fails. */
import type { AddressInfo } from 'node:net';
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import {
  type FastifyBaseLogger,
  type FastifyHttpOptions,
  type FastifyInstance,
  fastify,
  type RawReplyDefaultExpression,
  type RawRequestDefaultExpression,
  type RawServerDefault,
} from 'fastify';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { makeProblemSender } from './errors.ts';

export type App = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>;

export function makeApp(log: Log, options: FastifyHttpOptions<RawServerDefault> = {}): App {
  const sendProblem = makeProblemSender(log);
  const app = fastify({ ...options, frameworkErrors: sendProblem });
  app.setErrorHandler(sendProblem);
  return app.withTypeProvider<TypeBoxTypeProvider>() as App;
}

/** Returns the URL it listens at; `setting` names the port in what the operator is told when it cannot. */
export async function listen(app: App, host: string, port: number, setting: string): Promise<string> {
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
