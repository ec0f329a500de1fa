/** The POSTs that arrive after the upgrade: which of the awaited ones are missing, which were not awaited, which are damaged. */
import type { ReceivedRequest, Receiver } from '../../receiver.ts';
import { hash } from '../ledger.ts';

export class Posts {
  /** POSTs whose bytes do not match their hash. */
  readonly garbled: string[] = [];
  /** By the path of the webhook, and the id of the event, or of the message where only that is known. */
  readonly #counts = new Map<string, number>();
  readonly #awaited: ReadonlySet<string>;

  constructor(receiver: Receiver, awaited: ReadonlySet<string>) {
    this.#awaited = awaited;
    receiver.behave((request, response) => {
      this.#note(request);
      request.body = Buffer.alloc(0);
      response.writeHead(204).end();
    });
  }

  #note({ url, headers, body }: ReceivedRequest): void {
    const { message, rawEmail, rawEmailEncoding, rawEmailSha256 } = JSON.parse(body.toString()).data;
    if (rawEmail !== null && hash(Buffer.from(rawEmail, rawEmailEncoding)) !== rawEmailSha256)
      this.garbled.push(`${url}: message ${message.id} came with other bytes than its hash says`);
    const key = `${url} ${url === '/live' ? message.id : headers['webhook-id']}`;
    this.#counts.set(key, (this.#counts.get(key) ?? 0) + 1);
  }

  /** `more`: what is awaited besides what waited before the upgrade. */
  listMissing(more: readonly string[] = []): string[] {
    return [...this.#awaited, ...more].filter((key) => !this.#counts.has(key));
  }

  /** Nothing is killed here, so each comes once. */
  listConjured(more: ReadonlySet<string>): string[] {
    const counts = [...this.#counts];
    const twice = counts
      .filter(([, count]) => count > 1)
      .map(([key, count]) => `POSTed ${count} times: ${key}`);
    const unknown = counts.filter(([key]) => !this.#awaited.has(key) && !more.has(key));
    return [...twice, ...unknown.map(([key]) => `POSTed, and did not wait: ${key}`)];
  }
}
