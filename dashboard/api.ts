/** The routes of the public API that the page uses, each with the type of its answer. */
import type {
  ApiKey,
  CreatedApiKey,
  CreatedWebhook,
  CurrentSession,
  Delivery,
  DeliveryItem,
  DeliveryWithAttempts,
  DnsRecord,
  Identity,
  Mailbox,
  Message,
  MessageSummary,
  PosthornEvent,
  Provider,
  Replay,
  SendAttempt,
  Session,
  SmtpAccount,
  Stats,
  Suppression,
  Webhook,
  WebhookTest,
} from './contract.ts';
import { type Requester, type RequestOptions, readNextCursor, request } from './request.ts';

export interface Listed<T> {
  items: T[];
  /** The cursor of the next page. Null: this is the last page. */
  next: string | null;
}

export type Query = NonNullable<RequestOptions['query']>;
export type Api = ReturnType<typeof makeApi>;

export function makeApi(requester: Requester) {
  const send = (method: string, path: string, options?: RequestOptions) =>
    request(requester, method, path, options);
  const read = async <T>(path: string, query: Query = {}): Promise<T> =>
    (await send('GET', path, { query })).json();
  const write = async <T>(method: string, path: string, body?: unknown): Promise<T> =>
    (await send(method, path, { body })).json();
  const list = async <T>(path: string, query: Query = {}): Promise<Listed<T>> => {
    const response = await send('GET', path, { query });
    return { items: await response.json(), next: readNextCursor(response) };
  };
  const remove = async (path: string): Promise<void> => {
    await send('DELETE', path);
  };

  return {
    signIn: (given: { apiKey: string } | { token: string }) => send('POST', '/sessions', { body: given }),
    currentSession: () => read<CurrentSession>('/sessions/current'),
    listSessions: (query?: Query) => list<Session>('/sessions', query),
    endSession: (id: string) => remove(`/sessions/${id}`),
    me: () => read<{ userId: string }>('/me'),
    stats: (query: { since: string; step: 'hour' | 'day' }) => read<Stats>('/stats', query),

    listIdentities: (query?: Query) => list<Identity>('/identities', query),
    getIdentity: (id: string) => read<Identity>(`/identities/${id}`),
    createIdentity: (given: object) => write<Identity>('POST', '/identities', given),
    updateIdentity: (id: string, given: object) => write<Identity>('PATCH', `/identities/${id}`, given),
    verifyIdentity: (id: string) => write<Identity>('POST', `/identities/${id}/verify`),
    deleteIdentity: (id: string) => remove(`/identities/${id}`),

    listMailboxes: (id: string) => read<Mailbox[]>(`/identities/${id}/mailboxes`),
    syncIdentity: (id: string, given: object) => write<Mailbox[]>('POST', `/identities/${id}/sync`, given),

    listAccounts: (query?: Query) => list<SmtpAccount>('/smtp-accounts', query),
    getAccount: (id: string) => read<SmtpAccount>(`/smtp-accounts/${id}`),
    createAccount: (given: object) => write<SmtpAccount>('POST', '/smtp-accounts', given),
    updateAccount: (id: string, given: object) => write<SmtpAccount>('PATCH', `/smtp-accounts/${id}`, given),
    verifyAccount: (id: string) => write<SmtpAccount>('POST', `/smtp-accounts/${id}/verify`),
    deleteAccount: (id: string) => remove(`/smtp-accounts/${id}`),

    listProviders: (query?: Query) => list<Provider>('/providers', query),
    getProvider: (id: string) => read<Provider>(`/providers/${id}`),
    createProvider: (given: object) => write<Provider>('POST', '/providers', given),
    verifyProvider: (id: string) => write<Provider>('POST', `/providers/${id}/verify`),
    deleteProvider: (id: string) => remove(`/providers/${id}`),

    listWebhooks: (query?: Query) => list<Webhook>('/webhooks', query),
    getWebhook: (id: string) => read<Webhook>(`/webhooks/${id}`),
    createWebhook: (given: object) => write<CreatedWebhook>('POST', '/webhooks', given),
    updateWebhook: (id: string, given: object) => write<Webhook>('PATCH', `/webhooks/${id}`, given),
    deleteWebhook: (id: string) => remove(`/webhooks/${id}`),
    getSecret: (id: string) => read<{ secret: string }>(`/webhooks/${id}/secret`),
    rotateSecret: (id: string) => write<{ secret: string }>('POST', `/webhooks/${id}/secret/rotate`),
    testWebhook: (id: string, event: string) => write<WebhookTest>('POST', `/webhooks/${id}/test`, { event }),
    replay: (id: string, given: object) => write<Replay>('POST', `/webhooks/${id}/replay`, given),
    getReplay: (id: string, replayId: string) => read<Replay>(`/webhooks/${id}/replays/${replayId}`),

    listDeliveries: (query: Query) => list<DeliveryItem>('/deliveries', query),
    getDelivery: (id: string) => read<DeliveryWithAttempts>(`/deliveries/${id}`),
    redeliver: (id: string) => write<Delivery>('POST', `/deliveries/${id}/redeliver`),

    getEvent: (id: string) => read<PosthornEvent>(`/events/${id}`),

    listMessages: (query: Query) => list<MessageSummary>('/messages', query),
    getMessage: (id: string) => read<Message>(`/messages/${id}`),
    getRaw: async (id: string) => (await send('GET', `/messages/${id}/raw`)).blob(),
    getAttachment: async (id: string, n: string) =>
      (await send('GET', `/messages/${id}/attachments/${n}`)).blob(),
    listSendAttempts: (id: string) => read<SendAttempt[]>(`/messages/${id}/attempts`),
    sendMessage: (given: object) => write<Message>('POST', '/messages', given),
    cancelMessage: (id: string) => write<Message>('POST', `/messages/${id}/cancel`),
    deleteMessage: (id: string) => remove(`/messages/${id}`),
    receive: (recipient: string, raw: string) =>
      send('POST', '/inbound', { query: { recipient }, body: raw, type: 'message/rfc822' }),

    listSuppressions: (query?: Query) => list<Suppression>('/suppressions', query),
    createSuppression: (given: object) => write<Suppression>('POST', '/suppressions', given),
    deleteSuppression: (address: string) => remove(`/suppressions/${encodeURIComponent(address)}`),

    listApiKeys: (query?: Query) => list<ApiKey>('/api-keys', query),
    createApiKey: (given: object) => write<CreatedApiKey>('POST', '/api-keys', given),
    deleteApiKey: (id: string) => remove(`/api-keys/${id}`),
  };
}

export function readRecords(identity: Identity): DnsRecord[] {
  return JSON.parse(identity.dns_records) ?? [];
}
