/**
 * DNS for questions that thousands of messages ask alike. Guarantees: an answer, or that there is none, is asked for once
 * in `keepMs` and once at a time; an outage is never kept; who stops waiting leaves nothing running behind.
 */
import { openDnsServers } from './dns-servers.ts';

export type Answer = string[] | string[][];

export interface SharedResolver {
  /**
   * Rejects with the code ENOTFOUND or ENODATA where DNS says that there is nothing, and with another code where DNS does not
   * say. After `signal` only what is known already is answered.
   */
  resolve(name: string, type: string, signal: AbortSignal): Promise<Answer>;
}

/** What DNS said: records, or its "no", the same error for all who ask (to make one takes a sixth of a message's time). */
type Word = { records: Answer } | { absence: Error };

interface Known {
  word: Word;
  until: number;
}

const maxKnown = 2000;
/** A longer answer is asked for every time: 2,000 of the longest that DNS can give would be 128 MB. */
const maxKnownChars = 4096;

export function makeResolver(options: {
  dnsServers: readonly string[] | null;
  keepMs?: number;
}): SharedResolver {
  const { keepMs = 60_000 } = options;
  // One second, then two: 3 s of a black hole for each server.
  const servers = openDnsServers({ dnsServers: options.dnsServers, roundsMs: [1000, 2000] });
  const known = new Map<string, Known>();
  const asked = new Map<string, Promise<Word>>();
  let waiting = 0;

  function recall(key: string): Word | null {
    const entry = known.get(key);
    if (!entry) return null;
    if (entry.until > Date.now()) return entry.word;
    known.delete(key);
    return null;
  }

  function keep(key: string, word: Word): void {
    if ('records' in word && word.records.flat().join('').length > maxKnownChars) return;
    known.delete(key);
    const [oldest] = known.size >= maxKnown ? known.keys() : [];
    if (oldest !== undefined) known.delete(oldest);
    known.set(key, { word, until: Date.now() + keepMs });
  }

  async function ask(name: string, type: string): Promise<Word> {
    try {
      return { records: (await servers.ask((server) => server.resolve(name, type))) as Answer };
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      // A name that DNS cannot hold is a name that nobody has.
      if (code === 'EBADNAME') return { absence: Object.assign(error as Error, { code: 'ENOTFOUND' }) };
      if (code === 'ENOTFOUND' || code === 'ENODATA') return { absence: error as Error };
      throw error;
    }
  }

  function askOnce(key: string, name: string, type: string): Promise<Word> {
    const open = asked.get(key);
    if (open) return open;
    const question = ask(name, type);
    asked.set(key, question);
    question
      .then((word) => keep(key, word))
      .catch(() => {})
      .finally(() => {
        if (asked.get(key) === question) asked.delete(key);
      });
    return question;
  }

  async function waitFor(question: Promise<Word>, signal: AbortSignal): Promise<Word> {
    waiting += 1;
    try {
      return await orAborted(question, signal);
    } finally {
      waiting -= 1;
      if (waiting === 0 && asked.size > 0 && signal.aborted) {
        asked.clear();
        servers.cancel();
      }
    }
  }

  return {
    async resolve(name, type, signal) {
      // A NUL would end the name on its way to DNS, and another be asked for.
      if (!/^[!-~]{1,255}$/.test(name)) throw noSuchName();
      const key = `${type} ${name.toLowerCase()}`;
      const word = recall(key) ?? (await waitFor(askUnless(signal, key, name, type), signal));
      if ('records' in word) return word.records;
      throw word.absence;
    },
  };

  function askUnless(signal: AbortSignal, key: string, name: string, type: string): Promise<Word> {
    return signal.aborted ? Promise.reject(tooLate()) : askOnce(key, name, type);
  }
}

function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const giveUp = () => reject(tooLate());
    signal.addEventListener('abort', giveUp, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', giveUp));
  });
}

function noSuchName(): Error {
  return Object.assign(new Error('No name that DNS could hold.'), { code: 'ENOTFOUND' });
}

function tooLate(): Error {
  return Object.assign(new Error('No answer from DNS in time.'), { code: 'ETIMEOUT' });
}
