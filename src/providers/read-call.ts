/** Reads a call of any provider. Guarantee: content comes back only after the proof of its kind was checked. */
import type { Credentials } from '../store/providers.ts';
import type { HookCall, ReadCall } from './hook.ts';
import { readMailgunCall } from './mailgun.ts';
import { readPostmarkCall } from './postmark.ts';
import { readSendgridCall } from './sendgrid.ts';
import { readSesCall } from './ses.ts';
import type { Sns } from './sns.ts';

export async function readCall(credentials: Credentials, call: HookCall, sns: Sns): Promise<ReadCall> {
  switch (credentials.kind) {
    case 'postmark':
      return readPostmarkCall(credentials, call);
    case 'mailgun':
      return readMailgunCall(credentials, call);
    case 'sendgrid':
      return readSendgridCall(credentials, call);
    case 'ses':
      return readSesCall(credentials, call, sns);
  }
}
