/** The tour with the client of @hey-api/openapi-ts. */
import { client } from './made/hey/client.gen.js';
import {
  createIdentity,
  createWebhook,
  getMe,
  listDeliveries,
  listMessages,
  receiveMessage,
  sendMessage,
} from './made/hey/sdk.gen.js';
import { finish, mail, read } from './tour.js';

client.setConfig({ baseUrl: read('BASE_URL'), auth: () => read('API_KEY'), throwOnError: true });
const throwOnError = true;

const { data: me } = await getMe({ throwOnError });
const { data: identity } = await createIdentity({ body: { value: read('ADDRESS') }, throwOnError });
const { data: webhook } = await createWebhook({
  body: { url: read('HOOK'), events: ['message.received', 'message.sent'], ownerId: me.userId },
  throwOnError,
});
await receiveMessage({ query: { recipient: read('ADDRESS') }, body: new Blob([mail]), throwOnError });
const { data: messages } = await listMessages({ query: { identity_id: identity.id }, throwOnError });
const [message] = messages;
if (message?.subject !== 'Hello') throw new Error('The message is not in the list');
const { data: deliveries } = await listDeliveries({
  query: { message_id: message.id, webhook_id: webhook.id },
  throwOnError,
});
if (deliveries.length !== 1) throw new Error('There is no delivery');
const { data: sent } = await sendMessage({
  body: { identityId: identity.id, inReplyTo: message.id, text: 'Yes, we are.' },
  throwOnError,
});
if (sent.sending?.recipients.length !== 1) throw new Error('The reply has no recipient');
finish();
