/**
 * Starts pieces of work by turns of the event loop. Pieces that come together, such as pipelined requests or the messages of forty
 * connections, would otherwise all be worked on in one turn: 4,000 requests took half a second, and nobody was served meanwhile.
 * Guarantees: in one turn of the event loop work of at most `perTurn` starts, or one piece that is larger; callers take turns, so a
 * piece of one caller waits for at most one piece of each other caller. A piece that comes alone starts at once.
 */
import { AsyncLocalStorage } from 'node:async_hooks';

export interface Turns {
  /** `weight`: in the unit of `perTurn`. */
  start(caller: string, begin: () => void, weight?: number): void;
  /**
   * A connection was accepted, and others may wait behind it. Node accepts one in each turn of the event loop, so while connections
   * come, one piece starts in each turn: whoever connects after 400 others would otherwise wait for 400 long turns.
   */
  noteConnection(): void;
}

interface Piece {
  weight: number;
  begin(): void;
}

export function makeTurns(perTurn: number): Turns {
  /** By caller, the pieces that wait, oldest first. The callers are in the order of their turns. */
  const waiting = new Map<string, Piece[]>();
  /** How much may still start in this turn of the event loop. */
  let left = perTurn;
  let isAccepting = false;
  let isScheduled = false;

  function schedule(): void {
    if (isScheduled) return;
    isScheduled = true;
    setImmediate(startNext);
  }

  function startNext(): void {
    isScheduled = false;
    left = isAccepting ? 1 : perTurn;
    isAccepting = false;
    for (const [caller, queue] of waiting) {
      const [next] = queue;
      if (!next || (next.weight > left && left < perTurn)) break;
      queue.shift();
      // The caller goes to the end of the line, and this loop comes to it again.
      waiting.delete(caller);
      if (queue.length > 0) waiting.set(caller, queue);
      startNow(next);
      if (left <= 0) break;
    }
    if (waiting.size > 0) schedule();
  }

  function startNow({ weight, begin }: Piece): void {
    left -= weight;
    schedule();
    begin();
  }

  return {
    start(caller, begin, weight = 1) {
      const isFirst = left === perTurn;
      if (waiting.size === 0 && (isFirst || weight <= left)) return startNow({ weight, begin });
      const queue = waiting.get(caller);
      // In the context of its own request: the request that schedules the next turn may be of another owner.
      const piece = { weight, begin: AsyncLocalStorage.bind(begin) };
      if (queue) queue.push(piece);
      else waiting.set(caller, [piece]);
      schedule();
    },
    noteConnection() {
      isAccepting = true;
      left = Math.min(left, 1);
      schedule();
    },
  };
}
