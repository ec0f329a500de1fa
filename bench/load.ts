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
  const { origin, pathname } = new URL(request.url);
  const pool = new Pool(origin, { connections: concurrency, pipelining: 1 });
  bench.defer(() => pool.destroy());
  const { method, headers = null, body = null } = request;
  const options = { path: pathname, method, headers, body };

  // `dispatch` and not `request`: it costs half, and the generator's share of the machine is the service's loss.
  function send(): Promise<void> {
    return new Promise((resolve, reject) => {
      let status = 0;
      let refusal = '';
      pool.dispatch(options, {
        onRequestStart() {},
        onResponseStart(_controller, statusCode) {
          status = statusCode;
        },
        onResponseData(_controller, chunk) {
          if (status !== request.status) refusal += chunk;
        },
        onResponseEnd() {
          if (status === request.status) resolve();
          else reject(new Error(`${request.method} ${request.url} answered ${status}: ${refusal}`));
        },
        onResponseError(_controller, error) {
          reject(error);
        },
      });
    });
  }

  return (durationMs) => measureRate(send, durationMs, bench.signal);
}
