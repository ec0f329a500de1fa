/**
 * The DNS client for mail, webhooks and identities. Guarantees: it returns one of three values and never throws; a failure is never
 * reported as "no record"; if a server fails or does not answer, the next server is asked; equal questions at the same time are
 * asked once; when all callers have aborted, open questions are cancelled.
 */
import { getServers, Resolver } from 'node:dns/promises';
import { askByWire, type RecordValues } from './dns-wire.ts';

export type DnsAnswer<Value> =
  | { kind: 'records'; values: Value[] }
  /** `impossible_name`: too long for DNS, with an empty label, or not of printable ASCII; no server was asked. */
  | { kind: 'none'; why: 'no_such_record' | 'no_such_name' | 'impossible_name' }
  /** `reason`: the end of a sentence, without its full stop. */
  | { kind: 'unknown'; reason: string };

export type RecordType = keyof RecordValues;

export interface DnsClient {
  /** Never rejects. After `signal` aborts, only cached answers are known. */
  resolve<Type extends RecordType>(
    name: string,
    type: Type,
    signal: AbortSignal,
  ): Promise<DnsAnswer<RecordValues[Type]>>;
}

type AnyAnswer = DnsAnswer<RecordValues[RecordType]>;

const maxCached = 2000;
/** 2,000 answers of the maximum length in DNS would be 128 MB. */
const maxCachedChars = 4096;

const absences: Record<string, Extract<AnyAnswer, { kind: 'none' }>['why'] | undefined> = {
  ENODATA: 'no_such_record',
  ENOTFOUND: 'no_such_name',
  EBADNAME: 'impossible_name',
};
const reasons: Record<string, string | undefined> = {
  ESERVFAIL: 'the DNS server failed (SERVFAIL)',
  EREFUSED: 'the DNS server refused to answer (REFUSED)',
  ETIMEOUT: 'DNS did not answer in time',
  ECANCELLED: 'DNS did not answer in time',
  ECONNREFUSED: 'no DNS server could be reached',
  EBADRESP: 'the DNS server sent an answer that cannot be read',
  EFORMERR: 'the DNS server could not read the question (FORMERR)',
  ENOTIMP: 'the DNS server does not support this question (NOTIMP)',
  ENOSERVER: 'no DNS server is configured',
  EBUDGET: 'the lookup needs too many questions',
};

export function makeDnsClient(options: {
  /** In this order. Null for the servers of the system. */
  dnsServers: readonly string[] | null;
  /** The timeout of each server in the first round, then of those that did not answer in the second round, and so on. */
  roundsMs?: readonly number[];
  /** How long answers are cached, also that there is no record. Failures are never cached. */
  keepMs?: number;
  /** Counts down with each question to a server; at 0 no more are asked. Several clients may share a budget. */
  budget?: { left: number };
}): DnsClient {
  const { keepMs = 0, roundsMs = [1000, 2000], budget = { left: Number.POSITIVE_INFINITY } } = options;
  const servers = openServers(options.dnsServers, roundsMs);
  const cache = new Map<string, { answer: AnyAnswer; until: number }>();
  const asked = new Map<string, Promise<AnyAnswer>>();
  let waiting = 0;
  let canceller = new AbortController();

  async function ask(name: string, type: RecordType): Promise<AnyAnswer> {
    let failure = 'ENOSERVER';
    let silent = [...servers];
    for (const [round, timeoutMs] of roundsMs.entries()) {
      const asking = silent;
      silent = [];
      for (const server of asking) {
        if (budget.left === 0) return toAnswer('EBUDGET');
        budget.left -= 1;
        const resolver = server[round] as Resolver;
        const result = await askServer(resolver, name, type, { timeoutMs, signal: canceller.signal });
        if (typeof result !== 'string') return result;
        failure = result;
        if (failure === 'ECANCELLED') return toAnswer(failure);
        if (failure === 'ETIMEOUT') silent.push(server);
        // To the end of the list, so that a dead server costs its timeout once.
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
      writeCache(key, answer);
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
      canceller.abort();
      canceller = new AbortController();
    }
    return answer;
  }

  function readCache(key: string): AnyAnswer | null {
    const entry = cache.get(key);
    if (!entry) return null;
    if (entry.until > Date.now()) return entry.answer;
    cache.delete(key);
    return null;
  }

  function writeCache(key: string, answer: AnyAnswer): void {
    if (keepMs === 0 || answer.kind === 'unknown' || JSON.stringify(answer).length > maxCachedChars) return;
    cache.delete(key);
    const [oldest] = cache.size >= maxCached ? cache.keys() : [];
    if (oldest !== undefined) cache.delete(oldest);
    cache.set(key, { answer, until: Date.now() + keepMs });
  }

  return {
    async resolve<Type extends RecordType>(name: string, type: Type, signal: AbortSignal) {
      // c-ares would cut the name at a NUL, and ask for another name.
      if (!/^[ -~]{1,255}$/.test(name)) return { kind: 'none', why: 'impossible_name' };
      const key = `${type} ${name.toLowerCase()}`;
      const known = readCache(key) ?? (signal.aborted ? toAnswer('ETIMEOUT') : null);
      const answer = known ?? (await waitFor(askOnce(key, name, type), signal));
      return answer as DnsAnswer<RecordValues[Type]>;
    },
  };
}

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
 * A Resolver for each server and round. A single Resolver for all servers would return SERVFAIL or REFUSED of the first server.
 * c-ares caches nothing here (Node 24.21, c-ares 1.34.8: the same Resolver sees a record that changed within its TTL).
 */
function openServers(dnsServers: readonly string[] | null, roundsMs: readonly number[]): Resolver[][] {
  const addresses = dnsServers ?? getServers();
  return addresses.map((address) =>
    roundsMs.map((timeout) => {
      const resolver = new Resolver({ timeout, tries: 1 });
      // With a single server of the system, Node reads the system's settings again while no server can be reached.
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

/** c-ares refuses other characters or, as with a backslash, asks for another name. */
const hostName = /^[\w.-]+$/;

/** Returns the answer, or an error code. */
async function askServer(
  server: Resolver,
  name: string,
  type: RecordType,
  limits: { timeoutMs: number; signal: AbortSignal },
): Promise<AnyAnswer | string> {
  const byWire = async () => askByWire({ server: server.getServers()[0] ?? '', name, type, ...limits });
  const byCares = () => queries[type](server, name).catch(({ code = 'unknown' }) => String(code));
  let result = hostName.test(name) ? await byCares() : await byWire();
  // c-ares cannot read a TXT record without any text.
  if (result === 'EBADRESP' && hostName.test(name)) result = await byWire();
  if (typeof result === 'string') {
    const why = absences[result];
    return why ? { kind: 'none', why } : result;
  }
  // Empty if the answer was only an alias.
  return result.length > 0 ? { kind: 'records', values: result } : { kind: 'none', why: 'no_such_record' };
}

function toAnswer(code: string): AnyAnswer {
  return { kind: 'unknown', reason: reasons[code] ?? `the DNS lookup failed (${code})` };
}

function orAborted(question: Promise<AnyAnswer>, signal: AbortSignal): Promise<AnyAnswer> {
  return new Promise((resolve) => {
    const giveUp = () => resolve(toAnswer('ETIMEOUT'));
    signal.addEventListener('abort', giveUp, { once: true });
    question.then(resolve).finally(() => signal.removeEventListener('abort', giveUp));
  });
}
