/** New mail for a user of its own while the upgraded service works: it must be accepted and delivered. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Server } from '../server.ts';
import { make } from '../trial.ts';

const pauseMs = 50;
const address = 'live@upgrade.example';

export interface Load {
  /** `/live` and the id of each accepted message: the path and message of the POST that must come. */
  readonly accepted: ReadonlySet<string>;
  readonly refusals: string[];
  stop(): Promise<void>;
}

/** As the user whose API key the server has. */
export async function startLoad(server: Server, ownerId: string, url: string): Promise<Load> {
  await make(server, '/identities', { value: address });
  await make(server, '/webhooks', { url, events: ['message.received'], ownerId });
  const accepted = new Set<string>();
  const refusals: string[] = [];
  let isOver = false;

  async function send(number: number): Promise<void> {
    const response = await fetch(`${server.url}/inbound?recipient=${address}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${server.apiKey}`, 'content-type': 'message/rfc822' },
      body: `Subject: ${number}\r\nMessage-ID: <${number}@sender.example>\r\n\r\nHello\r\n`,
    });
    const text = await response.text();
    if (response.status !== 202)
      refusals.push(`POST /inbound was answered ${response.status}: ${text.slice(0, 200)}`);
    else for (const id of JSON.parse(text).messageIds) accepted.add(`/live ${id}`);
  }

  async function sendAll(): Promise<void> {
    for (let number = 1; !isOver; number += 1) {
      await send(number);
      await delay(pauseMs);
    }
  }

  const sending = sendAll();
  // `stop` reports it. If the run is interrupted, nobody calls `stop`, and the rest is still cleaned up.
  sending.catch(() => {});
  return {
    accepted,
    refusals,
    async stop() {
      isOver = true;
      await sending;
    },
  };
}
