/** What a route is handed: the parts of the service it may use, and how it names its own addresses. */
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import type {
  FastifyBaseLogger,
  FastifyInstance,
  RawReplyDefaultExpression,
  RawRequestDefaultExpression,
  RawServerDefault,
} from 'fastify';
import type { Config } from '../config.ts';
import type { Links } from '../contract/links.ts';
import type { Pool } from '../db/client.ts';
import type { VerifyParts } from '../identities/verify.ts';
import type { Log } from '../lib/log.ts';
import type { Metrics } from '../lib/metrics.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { Tracer } from '../lib/tracing.ts';
import type { Egress } from '../net/egress.ts';
import type { AcceptParts } from '../receiving/accept.ts';
import type { Examiner } from '../receiving/examine.ts';
import type { Poster } from '../webhooks/post.ts';

export interface Services {
  config: Config;
  sql: Pool;
  sealer: Sealer;
  log: Log;
  metrics: Metrics;
  /** Null: tracing is off. */
  tracer: Tracer | null;
  links: Links;
  examiner: Examiner;
  /** What taking mail needs. */
  mail: AcceptParts;
  /** What proving a domain needs. */
  verification: VerifyParts;
  egress: Egress;
  poster: Poster;
  /** Sent with every POST to a webhook. */
  userAgent: string;
  /** Deliveries may be ready: call it after the commit that made them so. */
  wakeDelivery(): void;
}

export type App = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>;

/** A path of ours as `Location` tells it. The Host header is never trusted, so without a public URL it is path-absolute. */
export function locate({ config }: Services, path: string): string {
  return `${config.publicUrl ?? ''}${config.basePath}${path}`;
}
