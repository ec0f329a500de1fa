/** Sends messages through the API of a test service, and waits for what becomes of them. */
import assert from 'node:assert/strict';
import { type Answer, type CallOptions, type TestService, waitFor } from './harness.ts';

// biome-ignore lint/suspicious/noExplicitAny: tests read any field of a response.
type Shown = any;

interface Outbox {
  /** A new identity. */
  makeIdentity(value: string, options?: CallOptions): Promise<string>;
  /** Sends a plain message with these changes. */
  send(change: Record<string, unknown>, options?: CallOptions): Promise<Shown>;
  post(change: Record<string, unknown>, options?: CallOptions): Promise<Answer>;
  /** Asks again after a 503, which a busy machine answers to large messages. */
  findMessage(id: string, options?: CallOptions): Promise<Shown>;
  /** When no recipient is queued any more. */
  findEnded(id: string): Promise<Shown>;
  /** When the first recipient is so. */
  findRecipient(id: string, isWanted: (recipient: Shown) => boolean): Promise<Shown>;
  attempts(id: string): Promise<Shown[]>;
  /** All events of a message, in the order in which they happened. */
  events(id: string): Promise<{ id: string; event: string; data: Shown }[]>;
}

export function openOutbox({ call }: Pick<TestService, 'call'>): Outbox {
  const post: Outbox['post'] = (change, options = {}) => {
    const plain = { to: 'bob@dest.example', subject: 'Hello', text: 'How are you?' };
    return call('POST', '/messages', { body: { ...plain, ...change }, ...options });
  };
  const findMessage: Outbox['findMessage'] = (id, options = {}) =>
    waitFor(`an answer about message ${id}`, async () => {
      const { status, body, text } = await call('GET', `/messages/${id}`, options);
      if (status === 503) return null;
      assert.equal(status, 200, text);
      return body;
    });
  return {
    ...{ post, findMessage },
    async makeIdentity(value, options = {}) {
      const { status, body, text } = await call('POST', '/identities', { body: { value }, ...options });
      assert.equal(status, 201, text);
      return body.id;
    },
    async send(change, options) {
      const answer = await post(change, options);
      assert.equal(answer.status, 202, answer.text);
      return answer.body;
    },
    findEnded: (id) =>
      waitFor(`message ${id}`, async () => {
        const message = await findMessage(id);
        return message.sending.status === 'queued' ? null : message;
      }),
    findRecipient: (id, isWanted) =>
      waitFor(`the recipient of ${id}`, async () => {
        const [recipient] = (await findMessage(id)).sending.recipients;
        return isWanted(recipient) ? recipient : null;
      }),
    async attempts(id) {
      const { status, body, text } = await call('GET', `/messages/${id}/attempts`);
      assert.equal(status, 200, text);
      return body;
    },
    async events(id) {
      const { body: listed } = await call('GET', '/events?limit=200');
      const all = await Promise.all(
        listed.map(async (event: { id: string }) => (await call('GET', `/events/${event.id}`)).body),
      );
      return all.filter(({ data }) => data.message?.id === id).reverse();
    },
  };
}
