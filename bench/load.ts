/** HTTP load, by the process http-load.control.ts. */
import { startChild } from './processes.ts';
import type { Bench } from './scenario.ts';

export interface LoadRequest {
  url: string;
  method: 'GET' | 'POST';
  headers?: Record<string, string>;
  body?: string;
  /** Any other status ends the scenario: a refusal is fast, and would count as work. */
  status: number;
}

export type Load = (request: LoadRequest, durationMs: number) => Promise<number>;

/** Sends requests for the given time, and returns requests per second. */
export function startLoad(bench: Bench): Load {
  const child = startChild(bench, new URL('./http-load.control.ts', import.meta.url), []);
  return async (request, durationMs) => Number(await child.ask({ request, durationMs }));
}
