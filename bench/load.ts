/** The load generator: the same request over and over, on kept connections without pipelining. */
import { Pool } from 'undici';
import { type Bench, concurrency, measureRate } from './scenario.ts';

export interface LoadRequest {
  url: string;
  method: 'GET' | 'POST';
  headers?: Record<string, string>;
  body?: string;
  /** Any other answer ends the scenario: refusals are quick, and no measure of the work. */
  status: number;
}

/** Requests a second for as long as asked. */
export function makeLoad(bench: Bench, request: LoadRequest): (durationMs: number) => Promise<number> {
  const { origin, pathname: path } = new URL(request.url);
  const pool = new Pool(origin, { connections: concurrency, pipelining: 1 });
  bench.defer(() => pool.destroy());

  async function send(): Promise<void> {
    const { method, status, headers = null } = request;
    const { statusCode, body } = await pool.request({ path, method, headers, body: request.body ?? null });
    if (statusCode !== status)
      throw new Error(`${method} ${request.url} answered ${statusCode}: ${await body.text()}`);
    await body.dump();
  }

  return (durationMs) => measureRate(send, durationMs, bench.signal);
}
