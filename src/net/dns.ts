/**
 * The one DNS client, for mail, webhooks and identities. Guarantees: an answer is one of three values and never an exception;
 * "there is none" never stands for an outage; what one server fails at, by whatever answer or by silence, the
 * next is asked; the same question is asked once at a time; when nobody waits any more, nothing is asked any more.
 */
import { getServers, Resolver } from 'node:dns/promises';

export type DnsAnswer<Value> =
  | { kind: 'records'; values: Value[] }
  /** `impossible_name`: DNS cannot hold it, or it has a character that c-ares refuses, such as `+` or `=`; no server was asked. */
  | { kind: 'none'; why: 'no_such_record' | 'no_such_name' | 'impossible_name' }
  /** `reason`: the end of a sentence, without its full stop. */
  | { kind: 'unknown'; reason: string };

/** What a record of each type says: of TXT all its strings joined, of SOA the serial. */
interface RecordValues {
  A: string;
  AAAA: string;
  CNAME: string;
  MX: { priority: number; exchange: string };
  NS: string;
  PTR: string;
  SOA: number;
  TXT: string;
}

export type RecordType = keyof RecordValues;

export interface DnsClient {
  /** Never rejects. After `signal` nothing is asked: what is not remembered is unknown. */
  resolve<Type extends RecordType>(
    name: string,
    type: Type,
    signal: AbortSignal,
  ): Promise<DnsAnswer<RecordValues[Type]>>;
}

type AnyAnswer = DnsAnswer<RecordValues[RecordType]>;

const maxKept = 2000;
/** A longer answer is not kept: 2,000 of the longest that DNS can give would be 128 MB. */
const maxKeptChars = 4096;

const absences: Record<string, Extract<AnyAnswer, { kind: 'none' }>['why'] | undefined> = {
  ENODATA: 'no_such_record',
  ENOTFOUND: 'no_such_name',
  EBADNAME: 'impossible_name',
};
const reasons: Record<string, string | undefined> = {
  ESERVFAIL: 'the DNS server failed (SERVFAIL)',
  EREFUSED: 'the DNS server refused to answer (REFUSED)',
  ETIMEOUT: 'no answer from DNS came in time',
  ECANCELLED: 'no answer from DNS came in time',
  ECONNREFUSED: 'no DNS server could be reached',
  EBADRESP: 'the DNS server answered nonsense',
  EFORMERR: 'the DNS server did not understand the question',
  ENOTIMP: 'the DNS server does not answer such questions',
  ENOSERVER: 'there is no DNS server to ask',
  EBUDGET: 'it takes too many questions to look this up',
};

export function makeDnsClient(options: {
  /** Asked in turn. Null for those of the system. */
  dnsServers: readonly string[] | null;
  /** How long to wait for each server, and then for each of the silent ones once more, and so on. */
  roundsMs?: readonly number[];
  /** How long an answer, or that there is none, is remembered; an outage never is. */
  keepMs?: number;
  /** Counts down with each question to a server; at 0 none is asked. Several clients may share one. */
  budget?: { left: number };
}): DnsClient {
  const { keepMs = 0, roundsMs = [1000, 2000], budget = { left: Number.POSITIVE_INFINITY } } = options;
  const servers = openServers(options.dnsServers, roundsMs);
  const kept = new Map<string, { answer: AnyAnswer; until: number }>();
  const asked = new Map<string, Promise<AnyAnswer>>();
  let waiting = 0;

  async function ask(name: string, type: RecordType): Promise<AnyAnswer> {
    let failure = 'ENOSERVER';
    let silent = [...servers];
    for (const round of roundsMs.keys()) {
      const inTurn = silent;
      silent = [];
      for (const server of inTurn) {
        if (budget.left === 0) return toAnswer('EBUDGET');
        budget.left -= 1;
        const said = await askServer(server[round] as Resolver, name, type);
        if (typeof said !== 'string') return said;
        failure = said;
        if (failure === 'ECANCELLED') return toAnswer(failure);
        if (failure === 'ETIMEOUT') silent.push(server);
        // A dead server among good ones costs its silence once.
        servers.push(...servers.splice(servers.indexOf(server), 1));
      }
    }
    return toAnswer(failure);
  }

  function askOnce(key: string, name: string, type: RecordType): Promise<AnyAnswer> {
    const open = asked.get(key);
    if (open) return open;
    const question = ask(name, type).then((answer) => {
      if (asked.get(key) === question) asked.delete(key);
      keep(key, answer);
      return answer;
    });
    asked.set(key, question);
    return question;
  }

  async function waitFor(question: Promise<AnyAnswer>, signal: AbortSignal): Promise<AnyAnswer> {
    waiting += 1;
    const answer = await orAborted(question, signal);
    waiting -= 1;
    if (waiting === 0 && asked.size > 0 && signal.aborted) {
      asked.clear();
      for (const resolver of servers.flat()) resolver.cancel();
    }
    return answer;
  }

  function recall(key: string): AnyAnswer | null {
    const entry = kept.get(key);
    if (!entry) return null;
    if (entry.until > Date.now()) return entry.answer;
    kept.delete(key);
    return null;
  }

  function keep(key: string, answer: AnyAnswer): void {
    if (keepMs === 0 || answer.kind === 'unknown' || JSON.stringify(answer).length > maxKeptChars) return;
    kept.delete(key);
    const [oldest] = kept.size >= maxKept ? kept.keys() : [];
    if (oldest !== undefined) kept.delete(oldest);
    kept.set(key, { answer, until: Date.now() + keepMs });
  }

  return {
    async resolve<Type extends RecordType>(name: string, type: Type, signal: AbortSignal) {
      // A NUL would end the name on its way to DNS, and another be asked for.
      if (!/^[!-~]{1,255}$/.test(name)) return { kind: 'none', why: 'impossible_name' };
      const key = `${type} ${name.toLowerCase()}`;
      const known = recall(key) ?? (signal.aborted ? toAnswer('ETIMEOUT') : null);
      const answer = known ?? (await waitFor(askOnce(key, name, type), signal));
      return answer as DnsAnswer<RecordValues[Type]>;
    },
  };
}

/** For work that has so much time, and ends early when `outer` does. */
export async function withDeadline<T>(
  ms: number,
  work: (signal: AbortSignal) => Promise<T>,
  outer?: AbortSignal,
): Promise<T> {
  const controller = new AbortController();
  const end = () => controller.abort();
  const timer = setTimeout(end, ms);
  outer?.addEventListener('abort', end, { once: true });
  if (outer?.aborted) end();
  try {
    return await work(controller.signal);
  } finally {
    clearTimeout(timer);
    outer?.removeEventListener('abort', end);
  }
}

/**
 * Of each server a Resolver for each round. One for all would not do: c-ares takes SERVFAIL or REFUSED of the first server for
 * the answer. It keeps no answers (Node 24.21, c-ares 1.34.8: a record changed within its TTL is seen by the same Resolver).
 */
function openServers(dnsServers: readonly string[] | null, roundsMs: readonly number[]): Resolver[][] {
  const addresses = dnsServers ?? getServers();
  return addresses.map((address) =>
    roundsMs.map((timeout) => {
      const resolver = new Resolver({ timeout, tries: 1 });
      // A single one of the system's is left to Node, which reads the settings anew while they lead nowhere.
      if (dnsServers || addresses.length > 1) resolver.setServers([address]);
      return resolver;
    }),
  );
}

const queries: { [Type in RecordType]: (server: Resolver, name: string) => Promise<RecordValues[Type][]> } = {
  A: (server, name) => server.resolve4(name),
  AAAA: (server, name) => server.resolve6(name),
  CNAME: (server, name) => server.resolveCname(name),
  MX: async (server, name) =>
    (await server.resolveMx(name)).map(({ priority, exchange }) => ({ priority, exchange })),
  NS: (server, name) => server.resolveNs(name),
  PTR: (server, name) => server.resolvePtr(name),
  SOA: async (server, name) => [(await server.resolveSoa(name)).serial],
  TXT: async (server, name) => (await server.resolveTxt(name)).map((strings) => strings.join('')),
};

/** The answer, or the code of the failure. */
async function askServer(server: Resolver, name: string, type: RecordType): Promise<AnyAnswer | string> {
  try {
    const values = await queries[type](server, name);
    // Empty where an alias was all that came.
    return values.length > 0 ? { kind: 'records', values } : { kind: 'none', why: 'no_such_record' };
  } catch (error) {
    const { code = 'unknown' } = error as NodeJS.ErrnoException;
    const why = absences[code];
    return why ? { kind: 'none', why } : code;
  }
}

function toAnswer(code: string): AnyAnswer {
  return { kind: 'unknown', reason: reasons[code] ?? `DNS could not be asked (${code})` };
}

function orAborted(question: Promise<AnyAnswer>, signal: AbortSignal): Promise<AnyAnswer> {
  return new Promise((resolve) => {
    const giveUp = () => resolve(toAnswer('ETIMEOUT'));
    signal.addEventListener('abort', giveUp, { once: true });
    question.then(resolve).finally(() => signal.removeEventListener('abort', giveUp));
  });
}
