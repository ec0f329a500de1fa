/** One signed POST of an event to a webhook, for the delivery loop and for the test route. */
import type { KeyObject } from 'node:crypto';
import type { Sealer } from '../lib/secrets.ts';
import type { TryResult } from '../store/delivery-queue.ts';
import type { WebhookTarget } from '../store/targets.ts';
import type { Decision } from './decide.ts';
import type { Poster, PostOutcome } from './post.ts';
import { secretContext } from './secret.ts';
import { signatureHeaders, signingKey } from './sign.ts';

export interface SigningTarget extends WebhookTarget {
  keys: KeyObject[];
}

export function openTarget(target: WebhookTarget, sealer: Sealer): SigningTarget {
  const open = (sealed: Buffer) => signingKey(sealer.open(sealed, secretContext(target.id)));
  return { ...target, keys: target.sealedSecrets.map(open) };
}

export interface SignedPost {
  target: SigningTarget;
  eventId: string;
  body: Buffer;
}

export function postSigned(
  parts: { poster: Poster; userAgent: string },
  { target, eventId, body }: SignedPost,
  /** Not part of the signature. */
  traceHeaders?: Record<string, string>,
): Promise<PostOutcome> {
  return parts.poster.post({
    url: target.url,
    body,
    headers: {
      'content-type': 'application/json',
      'user-agent': parts.userAgent,
      ...signatureHeaders(eventId, Math.floor(Date.now() / 1000), body, target.keys),
      ...traceHeaders,
    },
  });
}

function describeFailure(outcome: PostOutcome): string {
  return outcome.kind === 'failure' ? outcome.detail : `status ${outcome.status}`;
}

export function toResult(outcome: PostOutcome, decision: Decision): TryResult {
  return {
    status: decision.status,
    waitSeconds: decision.waitSeconds,
    durationMs: outcome.durationMs,
    responseStatus: outcome.status ?? null,
    responseHeaders: outcome.headers ? JSON.stringify(outcome.headers) : null,
    responseBody: outcome.body ?? null,
    error: decision.error,
    errorDetail: decision.error === null ? null : describeFailure(outcome),
  };
}
