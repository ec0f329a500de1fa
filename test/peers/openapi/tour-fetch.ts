/** The tour with openapi-fetch and the types of openapi-typescript. */
import createClient from 'openapi-fetch';
import type { paths } from './made/schema.js';
import { finish, mail, read } from './tour.js';

const client = createClient<paths>({
  baseUrl: read('BASE_URL'),
  headers: { authorization: `Bearer ${read('API_KEY')}` },
});

const me = await client.GET('/me');
if (!me.data) throw me.error;
const identity = await client.POST('/identities', { body: { value: read('ADDRESS') } });
if (!identity.data) throw identity.error;
const webhook = await client.POST('/webhooks', {
  body: { url: read('HOOK'), events: ['message.received', 'message.sent'], ownerId: me.data.userId },
});
if (!webhook.data) throw webhook.error;
const accepted = await client.POST('/inbound', {
  params: { query: { recipient: read('ADDRESS') } },
  headers: { 'content-type': 'message/rfc822' },
  body: mail,
  bodySerializer: (body: string) => body,
});
if (!accepted.data) throw accepted.error;
const messages = await client.GET('/messages', { params: { query: { identity_id: identity.data.id } } });
const [message] = messages.data ?? [];
if (message?.subject !== 'Hello') throw messages.error;
const query = { message_id: message.id, webhook_id: webhook.data.id };
const deliveries = await client.GET('/deliveries', { params: { query } });
if (deliveries.data?.length !== 1) throw deliveries.error;
const sent = await client.POST('/messages', {
  body: { identityId: identity.data.id, inReplyTo: message.id, text: 'Yes, we are.' },
});
if (sent.data?.sending?.recipients.length !== 1) throw sent.error;
finish();
