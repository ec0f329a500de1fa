/** What every view of a signed-in page uses, and the hooks to load and to change things. */
import { useSignal } from '@preact/signals';
import { createContext } from 'preact';
import { useContext, useEffect, useRef } from 'preact/hooks';
import type { Api } from './api.ts';
import type { Live, LiveListener } from './live.ts';
import { ApiProblem } from './request.ts';

export interface Page {
  api: Api;
  live: Live;
  userId: string;
  sessionId: string;
}

export const PageContext = createContext<Page | null>(null);

export function usePage(): Page {
  const page = useContext(PageContext);
  if (!page) throw new Error('This view is only for a signed-in page.');
  return page;
}

/** Calls the listener for each event that happens while the view is shown. */
export function useLive(listener: LiveListener): void {
  const { live } = usePage();
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => live.subscribe((event) => latest.current(event)), [live]);
}

/** Calls `again` after events: at most four times a second, however many there are. */
export function useAfterEvents(again: () => unknown): void {
  const timer = useRef(0);
  useLive(() => {
    if (timer.current !== 0) return;
    timer.current = window.setTimeout(() => {
      timer.current = 0;
      again();
    }, 250);
  });
  useEffect(() => () => clearTimeout(timer.current), []);
}

/** Loads a value when the view appears and when `keys` change. `reload` keeps the old value until the new value is there. */
export function useLoaded<T>(load: () => Promise<T>, keys: readonly unknown[] = []) {
  const value = useSignal<T | null>(null);
  const problem = useSignal<ApiProblem | null>(null);
  const latest = useRef(load);
  latest.current = load;
  const turn = useRef(0);
  const reload = async () => {
    turn.current += 1;
    const mine = turn.current;
    try {
      const loaded = await latest.current();
      // A slow answer must not replace the answer of a later request.
      if (mine !== turn.current) return;
      value.value = loaded;
      problem.value = null;
    } catch (error) {
      if (mine === turn.current) problem.value = toProblem(error);
    }
  };
  useEffect(() => {
    value.value = null;
    reload();
    return () => {
      turn.current += 1;
    };
  }, keys);
  return { value, problem, reload };
}

/** A change that the user asks for: busy until it ends, and its problem until the next try. */
export function useAction<A extends unknown[]>(act: (...given: A) => Promise<unknown>) {
  const busy = useSignal(false);
  const problem = useSignal<ApiProblem | null>(null);
  const run = async (...given: A): Promise<void> => {
    if (busy.value) return;
    busy.value = true;
    problem.value = null;
    try {
      await act(...given);
    } catch (error) {
      problem.value = toProblem(error);
    } finally {
      busy.value = false;
    }
  };
  return { busy, problem, run };
}

/** Calls `again` every so often, for states that no event announces. Null: not at all. Not while the tab is hidden. */
export function useRepeated(everyMs: number | null, again: () => void): void {
  const latest = useRef(again);
  latest.current = again;
  useEffect(() => {
    if (everyMs === null) return;
    const timer = setInterval(() => document.visibilityState === 'visible' && latest.current(), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
}

function toProblem(error: unknown): ApiProblem {
  if (error instanceof ApiProblem) return error;
  const detail = error instanceof Error ? error.message : String(error);
  return new ApiProblem(0, { title: 'This page has a fault', detail, code: 'page_fault' });
}
