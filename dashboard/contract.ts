/** What the API answers, as types: made from the schemas that validate and document the API. No code of the service is loaded. */
import type { Static } from 'typebox';
import type {
  ApiKey as ApiKeySchema,
  CreatedApiKey as CreatedApiKeySchema,
} from '../src/contract/api-key.ts';
import type {
  Attempt as AttemptSchema,
  DeliveryItem as DeliveryItemSchema,
  Delivery as DeliverySchema,
  DeliveryWithAttempts as DeliveryWithAttemptsSchema,
} from '../src/contract/delivery.ts';
import type { Event as EventSchema } from '../src/contract/event.ts';
import type { DnsRecord as DnsRecordSchema, Identity as IdentitySchema } from '../src/contract/identity.ts';
import type { Mailbox as MailboxSchema } from '../src/contract/mailbox.ts';
import type { Message as MessageSchema, MessageSummary as SummarySchema } from '../src/contract/message.ts';
import type { Provider as ProviderSchema } from '../src/contract/provider.ts';
import type { Replay as ReplaySchema } from '../src/contract/replay.ts';
import type {
  SendAttempt as SendAttemptSchema,
  Suppression as SuppressionSchema,
} from '../src/contract/sending.ts';
import type {
  CurrentSession as CurrentSessionSchema,
  Session as SessionSchema,
} from '../src/contract/session.ts';
import type {
  ServerState as ServerStateSchema,
  SmtpAccount as SmtpAccountSchema,
} from '../src/contract/smtp-account.ts';
import type { Traffic } from '../src/contract/stats.ts';
import type {
  CreatedWebhook as CreatedWebhookSchema,
  Webhook as WebhookSchema,
  WebhookTest as WebhookTestSchema,
} from '../src/contract/webhook.ts';

export type ApiKey = Static<typeof ApiKeySchema>;
export type CreatedApiKey = Static<typeof CreatedApiKeySchema>;
export type Attempt = Static<typeof AttemptSchema>;
export type Delivery = Static<typeof DeliverySchema>;
export type DeliveryItem = Static<typeof DeliveryItemSchema>;
export type DeliveryWithAttempts = Static<typeof DeliveryWithAttemptsSchema>;
export type DnsRecord = Static<typeof DnsRecordSchema>;
export type Identity = Static<typeof IdentitySchema>;
export type Mailbox = Static<typeof MailboxSchema>;
export type Message = Static<typeof MessageSchema>;
export type MessageSummary = Static<typeof SummarySchema>;
export type Provider = Static<typeof ProviderSchema>;
export type Replay = Static<typeof ReplaySchema>;
export type SendAttempt = Static<typeof SendAttemptSchema>;
export type CurrentSession = Static<typeof CurrentSessionSchema>;
export type PosthornEvent = Static<typeof EventSchema>;
export type Session = Static<typeof SessionSchema>;
export type ServerState = Static<typeof ServerStateSchema>;
export type SmtpAccount = Static<typeof SmtpAccountSchema>;
export type Suppression = Static<typeof SuppressionSchema>;
export type CreatedWebhook = Static<typeof CreatedWebhookSchema>;
export type Webhook = Static<typeof WebhookSchema>;
export type WebhookTest = Static<typeof WebhookTestSchema>;

export type Stats = Static<typeof Traffic>[];
