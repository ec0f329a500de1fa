/** Signing secrets in the form of Standard Webhooks: `whsec_` and 32 random bytes in base64. */
import { randomBytes } from 'node:crypto';

export function makeSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`;
}

/** What a sealed secret is bound to, so that it opens only for the webhook it was made for. */
export function secretContext(webhookId: string): string {
  return `webhook ${webhookId}`;
}
