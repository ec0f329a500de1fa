/** Which rows of a long list are near the visible part of the page. */
import { useSignal } from '@preact/signals';
import type { RefObject } from 'preact';
import { useEffect } from 'preact/hooks';

/** At most this many rows are in the page. */
const maxRows = 120;
const rowsBefore = 30;

export function useWindow(list: RefObject<HTMLElement | null>, count: number): { from: number; to: number } {
  const from = useSignal(0);
  useEffect(() => {
    const update = () => {
      if (!list.current) return;
      const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
      const rowHeight = rem * Number.parseFloat(getComputedStyle(list.current).getPropertyValue('--row'));
      from.value = firstRow(-list.current.getBoundingClientRect().top, rowHeight);
    };
    update();
    addEventListener('scroll', update, { passive: true });
    addEventListener('resize', update);
    return () => {
      removeEventListener('scroll', update);
      removeEventListener('resize', update);
    };
  }, [count > 0]);
  return {
    from: Math.min(from.value, Math.max(0, count - maxRows)),
    to: Math.min(count, from.value + maxRows),
  };
}

/** In steps of ten, so that few rows change while the page scrolls. */
function firstRow(scrolledPx: number, rowPx: number): number {
  return Math.max(0, Math.floor(scrolledPx / rowPx / 10) * 10 - rowsBefore);
}
