/**
 * Calls the API again and again while the database is in trouble, with reads and writes. Every response is the expected one or
 * 503, none takes long, and everything acknowledged exists at the end.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import type { Server } from './server.ts';

const pauseMs = 100;
/** The longest wait of a caller, whatever happens to the database. */
const mostMs = 15_000;

export class Probe {
  /** The number of 503 responses. */
  unavailable = 0;
  slowestMs = 0;
  readonly #server: Server;
  readonly #made: string[] = [];
  readonly #faults: string[] = [];
  #isOver = false;
  #working: Promise<unknown> | undefined;

  constructor(server: Server) {
    this.#server = server;
  }

  start(): void {
    this.#isOver = false;
    this.#working = Promise.all([this.#keep(() => this.#read()), this.#keep(() => this.#write())]);
  }

  async stop(): Promise<void> {
    this.#isOver = true;
    await this.#working;
  }

  /** Waits until the service is ready, and returns how long that took. */
  async recovered(withinMs: number): Promise<number> {
    const began = performance.now();
    await waitFor(
      'the service to be ready by itself',
      async () => (await this.#server.call('GET', '/health/ready')).status === 200,
      withinMs,
    );
    return Math.round(performance.now() - began);
  }

  /** Wrong responses, and created things that do not exist. */
  async conclude(): Promise<string[]> {
    const late =
      this.slowestMs > mostMs ? [`an answer of the API took ${Math.round(this.slowestMs)} ms`] : [];
    const lost: string[] = [];
    for (const id of this.#made) {
      const { status } = await this.#server.call('GET', `/identities/${id}`);
      if (status !== 200) lost.push(`identity ${id} was made with 201, and GET answers ${status}`);
    }
    return [...this.#faults, ...late, ...lost];
  }

  async #keep(call: () => Promise<void>): Promise<void> {
    while (!this.#isOver) {
      const began = performance.now();
      await call().catch((error) => this.#faults.push(`a call of the API failed: ${error.cause ?? error}`));
      this.slowestMs = Math.max(this.slowestMs, performance.now() - began);
      await delay(pauseMs);
    }
  }

  async #read(): Promise<void> {
    await this.#take('GET /messages', 200, await this.#server.call('GET', '/messages?limit=1'));
  }

  async #write(): Promise<void> {
    const value = `probe${this.#made.length}-${performance.now().toFixed(0)}@probe.example`;
    const body = await this.#take(
      'POST /identities',
      201,
      await this.#server.call('POST', '/identities', { value }),
    );
    if (body) this.#made.push((body as { id: string }).id);
  }

  async #take(what: string, wanted: number, response: Response): Promise<unknown> {
    const text = await response.text();
    if (response.status === wanted) return JSON.parse(text);
    if (response.status === 503) this.unavailable += 1;
    else this.#faults.push(`${what} was answered ${response.status}: ${text.slice(0, 200)}`);
    return undefined;
  }
}
