/** Fastify as every HTTP listener uses it: handlers typed by their schemas, and a problem document for every error. */
import type { AddressInfo } from 'node:net';
import { SerializerSelector } from '@fastify/fast-json-stringify-compiler';
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import { type FastifyHttpOptions, fastify, type RawServerDefault } from 'fastify';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { originOf } from '../lib/origin.ts';
import { describeListenError } from '../net/listen-error.ts';
import { type BodyLimits, defaultBodyLimits, refuseTinyChunks, stopReadingUnread } from './costly-bodies.ts';
import { makeProblemSender } from './errors.ts';

export type App = ReturnType<typeof makeApp>;

export function makeApp(
  log: Log,
  options: FastifyHttpOptions<RawServerDefault> = {},
  bodyLimits: BodyLimits = defaultBodyLimits,
) {
  const sendProblem = makeProblemSender(log);
  const app = fastify({
    ...options,
    schemaController: { compilersFactory: { buildSerializer: buildSerializerLater() } },
    // Fastify runs no hooks for these errors.
    frameworkErrors(error, request, reply) {
      stopReadingUnread(request, reply, bodyLimits);
      sendProblem(error, request, reply);
    },
  });
  app.setErrorHandler(sendProblem);
  app.addHook('preParsing', (request, _reply, payload, done) =>
    done(null, refuseTinyChunks(request, payload, bodyLimits)),
  );
  app.addHook('onSend', (request, reply, _payload, done) => {
    stopReadingUnread(request, reply, bodyLimits);
    done();
  });
  return app.withTypeProvider<TypeBoxTypeProvider>();
}

/** Each serializer is compiled at its first response: all of them would take a third of the start, and a process uses few. */
function buildSerializerLater(): ReturnType<typeof SerializerSelector> {
  const build = SerializerSelector();
  return (sharedSchemas, options) => {
    const compile = build(sharedSchemas, options);
    return (route) => {
      let serialize: ReturnType<typeof compile> | undefined;
      return (data) => {
        serialize ??= compile(route);
        return serialize(data);
      };
    };
  };
}

/** Returns the URL. `setting` is the name of the setting that chooses the port. */
export async function listen(app: App, host: string, port: number, setting: string): Promise<string> {
  try {
    await app.listen({ host, port });
  } catch (error) {
    const cause = error as NodeJS.ErrnoException;
    const listener = { host, port, hostSetting: 'HOST', portSetting: setting };
    const message = describeListenError(cause.code, listener);
    throw message ? new OperatorError(message, { cause }) : cause;
  }
  const address = app.server.address() as AddressInfo;
  return originOf(host, address.port);
}
