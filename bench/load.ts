/** Load over HTTP, made by a process of its own: see http-load.control.ts. */
import { startChild } from './processes.ts';
import type { Bench } from './scenario.ts';

export interface LoadRequest {
  url: string;
  method: 'GET' | 'POST';
  headers?: Record<string, string>;
  body?: string;
  /** Any other answer ends the scenario: refusals are quick, and no measure of the work. */
  status: number;
}

export type Load = (request: LoadRequest, durationMs: number) => Promise<number>;

/** Requests a second for as long as asked. */
export function startLoad(bench: Bench): Load {
  const child = startChild(bench, new URL('./http-load.control.ts', import.meta.url), []);
  return async (request, durationMs) => Number(await child.ask({ request, durationMs }));
}
