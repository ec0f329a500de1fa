/** Signing secrets in the form of Standard Webhooks: `whsec_` and 32 random bytes in base64. */
import { randomBytes } from 'node:crypto';

export function makeSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`;
}

/** A sealed secret is bound to this text, so that it can be decrypted only for its own webhook. */
export function secretContext(webhookId: string): string {
  return `webhook ${webhookId}`;
}
