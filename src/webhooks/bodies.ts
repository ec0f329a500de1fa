/** The bodies that are POSTed: built once for each event, shared by its webhooks and tries, kept while there is room. */

const maxBytes = 32 * 1024 * 1024;

/** `data` is JSON text already; it goes in as it is. */
export function buildBody(event: string, data: string): Buffer {
  return Buffer.from(`{"event":${JSON.stringify(event)},"data":${data}}`);
}

export class Bodies {
  readonly #bodies = new Map<string, Buffer>();
  #bytes = 0;

  get(eventId: string): Buffer | undefined {
    return this.#bodies.get(eventId);
  }

  build(eventId: string, event: string, data: string): Buffer {
    const body = buildBody(event, data);
    this.#bodies.set(eventId, body);
    this.#bytes += body.length;
    for (const [oldest, { length }] of this.#bodies) {
      if (this.#bytes <= maxBytes || oldest === eventId) break;
      this.#bodies.delete(oldest);
      this.#bytes -= length;
    }
    return body;
  }
}
