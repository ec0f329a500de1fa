/**
 * What stands in DNS now: asked of the operator's servers where they are set, else of the domain's own, so that a change is
 * seen at once and not when a cache has forgotten. Guarantees: "there is none" is said only by a server that answers for the
 * zone, everything else is `unknown`; the domain's servers are asked only at addresses that `serverAt` lets through; a look
 * ends by its deadline, asks a bounded number of questions and leaves none open behind it.
 */
import { getServers, Resolver } from 'node:dns/promises';
import { classify } from '../net/addresses.ts';
import { type Answer, type Answers, type Question, questionKey } from './dns-record.ts';
import { parentName, plainName } from './names.ts';

export interface Lookup {
  /** Never rejects. What is not known by the deadline, or when `signal` says to stop, is unknown. */
  look(questions: readonly Question[], signal: AbortSignal): Promise<Answers>;
  /**
   * One question to every server, at all its addresses: what each of those says that answer, in no order. Empty when none does,
   * or when not all could be asked in time. Never rejects.
   */
  lookEverywhere(question: Question, signal: AbortSignal): Promise<Answer[]>;
}

interface LookupOptions {
  /** Answer everything when they are set. */
  dnsServers: readonly string[] | null;
  /** Where to ask a name server that has this address, `ip` or `ip:port`; null when it must not be asked. */
  serverAt?(address: string): string | null;
  /** They tell who a domain's servers are; null for those of the system. */
  resolvers?: readonly string[] | null;
  deadlineMs?: number;
  maxQueries?: number;
}

/** NXDOMAIN is told from a name without such records: below a name that does not exist there is no zone to look for. */
type Reply = Exclude<Answer, { kind: 'none' }> | { kind: 'none'; exists: boolean };

/** Who answers for a name. */
type Zone =
  | { kind: 'served'; servers: Servers }
  /** The name is in no zone because its domain does not exist. */
  | { kind: 'nowhere' }
  | { kind: 'unknown'; reason: string };

/** One for each, to be asked in turn: Node's c-ares takes SERVFAIL of the first for the answer. Who fails goes to the end. */
type Servers = Resolver[];

type RecordType = Question['type'] | 'CNAME' | 'NS' | 'SOA' | 'A' | 'AAAA';

// Node's c-ares keeps no answers (24.21, c-ares 1.34.8: a record changed within its TTL is seen by the same Resolver).
const firstTimeoutMs = 1000;
/** For finding out who answers: a dead server among good ones costs this once in a look, and is then left out. */
const probe = { timeout: 700, tries: 2, maxTimeout: 1400 };
const maxAliases = 8;

/** How far a look goes: to how many of a zone's servers, at how many addresses of each, with how many questions in all. */
interface Breadth {
  servers: number;
  addresses: number;
  questions: number;
}
const few: Breadth = { servers: 4, addresses: 1, questions: 100 };
/**
 * As many servers as fit in one packet, nobody has more; one at several addresses may be several. Each is asked for its SOA, the
 * record and an alias, and some of that again, so that a zone of that size is asked to the end: 13 · 8 · 4, and their names.
 */
const every: Breadth = { servers: 13, addresses: 8, questions: 500 };

export function makeLookup(options: LookupOptions): Lookup {
  async function ask<T>(
    signal: AbortSignal,
    breadth: Breadth,
    put: (asking: Asking, findZone: FindZone) => Promise<T>,
  ): Promise<T> {
    const asking = new Asking(options.deadlineMs ?? 8000, options.maxQueries ?? breadth.questions, signal);
    try {
      const findZone = options.dnsServers
        ? answeredBy(asking.servers(options.dnsServers))
        : zoneFinder(asking, options, breadth);
      return await put(asking, findZone);
    } finally {
      asking.end();
    }
  }

  return {
    look: (questions, signal) =>
      ask(signal, few, async (asking, findZone) => {
        const answered = questions.map(
          async (question) => [questionKey(question), await answer(asking, findZone, question)] as const,
        );
        return new Map(await Promise.all(answered));
      }),
    lookEverywhere: (question, signal) =>
      ask(signal, every, async (asking, findZone) => {
        const said = await answersOfAll(asking, findZone, question);
        return asking.isSpent ? [] : said;
      }),
  };
}

type FindZone = (name: string) => Promise<Zone>;

/** Follows aliases itself: a zone's server answers with an alias that leads out of the zone, and no more. */
async function answer(asking: Asking, findZone: FindZone, question: Question): Promise<Answer> {
  let name = question.name;
  for (let aliases = 0; aliases <= maxAliases; aliases += 1) {
    const zone = await findZone(name);
    if (zone.kind === 'unknown') return zone;
    if (zone.kind === 'nowhere') return { kind: 'none' };
    const reply = await asking.ask(zone.servers, name, question.type);
    if (reply.kind !== 'none') return reply;
    const alias = await asking.ask(zone.servers, name, 'CNAME');
    if (alias.kind === 'unknown') return alias;
    const [target] = alias.kind === 'records' ? alias.values : [];
    if (target === undefined) return { kind: 'none' };
    name = plainName(target);
  }
  return tellCircle(question);
}

/** The servers of a zone may disagree on where an alias leads: then all of that is asked. */
async function answersOfAll(asking: Asking, findZone: FindZone, question: Question): Promise<Answer[]> {
  const said: Answer[] = [];
  let names = new Set([question.name]);
  for (let aliases = 0; names.size > 0; aliases += 1) {
    if (aliases > maxAliases) return [tellCircle(question)];
    const targets = new Set<string>();
    const askServer = async (server: Resolver, name: string) => {
      // Twice where it has to be: one that is only hard to reach must not be passed over.
      const reply = await asking.ask([server, server], name, question.type);
      if (reply.kind === 'unknown') return;
      const alias = reply.kind === 'none' ? await asking.ask([server, server], name, 'CNAME') : reply;
      const [target] = reply.kind === 'none' && alias.kind === 'records' ? alias.values : [];
      if (target === undefined) said.push(alias);
      else targets.add(plainName(target));
    };
    const askName = async (name: string) => {
      const zone = await findZone(name);
      if (zone.kind === 'served') await Promise.all(zone.servers.map((server) => askServer(server, name)));
      else said.push(zone.kind === 'nowhere' ? { kind: 'none' } : zone);
    };
    await Promise.all([...names].map(askName));
    names = targets;
  }
  return said;
}

function tellCircle({ name }: Question): Answer {
  return { kind: 'unknown', reason: `${name} is an alias that leads in a circle, or over too many` };
}

function answeredBy(servers: Servers): FindZone {
  return async () => ({ kind: 'served', servers });
}

/** Walks up from a name to the first that has name servers. Names of one look share the steps. */
/** A zone may name any address for its servers, and must not lead inside. */
function onlyPublic(address: string): string | null {
  return classify(address) === 'public' ? address : null;
}

function zoneFinder(asking: Asking, options: LookupOptions, breadth: Breadth): FindZone {
  const system = asking.servers(options.resolvers ?? getServers());
  const known = new Map<string, Promise<Zone>>();

  function find(name: string): Promise<Zone> {
    const zone = known.get(name) ?? walk(name);
    known.set(name, zone);
    return zone;
  }

  async function walk(name: string): Promise<Zone> {
    const servers = await asking.ask(system, name, 'NS');
    if (servers.kind === 'unknown') return servers;
    if (servers.kind === 'records') {
      const zone = await reach(name, servers.values);
      // The resolver follows an alias to the servers of whatever it leads to; those know nothing of this name.
      const isAlias = zone.kind === 'unknown' && (await asking.ask(system, name, 'CNAME')).kind === 'records';
      if (!isAlias) return zone;
    }
    const parent = parentName(name);
    // A top-level domain's servers would only point back to those of the domain.
    if (parent.includes('.')) return find(parent);
    return servers.kind === 'none' && !servers.exists
      ? { kind: 'nowhere' }
      : { kind: 'unknown', reason: `DNS names no servers for ${name}` };
  }

  /** The zone's servers that answer for it, the freshest first: a secondary may not have the latest change yet. */
  async function reach(zone: string, names: readonly string[]): Promise<Zone> {
    const servers = await Promise.all(names.slice(0, breadth.servers).map((name) => locate(name)));
    const open = [...new Set(servers.flatMap(({ at }) => at))];
    if (open.length === 0) {
      return {
        kind: 'unknown',
        reason: servers.some(({ isRefused }) => isRefused)
          ? `the name servers of ${zone} have addresses that are not public, which only the operator's POSTHORN_DNS_SERVERS may be`
          : `the name servers of ${zone} could not be found by their names`,
      };
    }
    const probes = await Promise.all(
      open.map(async (server) => ({ server, ...(await probeServer(server, zone)) })),
    );
    const good = probes.filter(({ reply }) => reply.kind === 'records');
    if (good.length === 0) return { kind: 'unknown', reason: tellLame(zone, probes) };
    good.sort((one, other) => compareSerials(other.serial, one.serial));
    return { kind: 'served', servers: asking.servers(good.map(({ server }) => server)) };
  }

  /** IPv4 first, and alone where that will do: a machine without IPv6 is common, one without IPv4 is not. */
  async function locate(name: string): Promise<{ at: string[]; isRefused: boolean }> {
    const v4 = await findAddresses(name, 'A');
    const v6 = v4.length < breadth.addresses ? await findAddresses(name, 'AAAA') : [];
    const places = [...v4, ...v6].slice(0, breadth.addresses).map(options.serverAt ?? onlyPublic);
    return { at: places.filter((place) => place !== null), isRefused: places.includes(null) };
  }

  async function findAddresses(name: string, type: 'A' | 'AAAA'): Promise<string[]> {
    const reply = await asking.ask(system, name, type);
    return reply.kind === 'records' ? reply.values : [];
  }

  /**
   * Only a server that has the zone's SOA answers for the zone (RFC 1034 §4.2.1). To others, and to what they point to instead,
   * c-ares says "no data", which must not be read as "no record".
   */
  async function probeServer(server: string, zone: string): Promise<{ reply: Reply; serial: number }> {
    const reply = await asking.ask(asking.servers([server], probe), zone, 'SOA');
    return { reply, serial: Number(reply.kind === 'records' ? reply.values[0] : 0) };
  }

  return find;
}

function tellLame(zone: string, probes: readonly { reply: Reply }[]): string {
  const reasons = probes.flatMap(({ reply }) => (reply.kind === 'unknown' ? [reply.reason] : []));
  return `none of the name servers of ${zone} answers for it (${reasons[0] ?? 'they do not have the zone'})`;
}

/** RFC 1982: serials go round. */
function compareSerials(one: number, other: number): number {
  return (one - other) | 0;
}

/** The questions of one look: they share a deadline and a number that they may not pass. */
class Asking {
  #left: number;
  #ended = false;
  #resolvers: Resolver[] = [];
  #timer: NodeJS.Timeout;
  #signal: AbortSignal;

  constructor(deadlineMs: number, maxQueries: number, signal: AbortSignal) {
    this.#left = maxQueries;
    this.#signal = signal;
    this.#timer = setTimeout(this.end, deadlineMs);
    signal.addEventListener('abort', this.end, { once: true });
    if (signal.aborted) this.end();
  }

  /** Of this look's own, so that its end ends no other's questions; to make a Resolver takes 0.05 ms. */
  servers(addresses: readonly string[], manner?: typeof probe): Servers {
    // What got lost on the way is asked again: of the next server, or of the only one.
    const tries = addresses.length > 1 ? 1 : 2;
    return addresses.map((address) => {
      const resolver = new Resolver(
        manner ?? { timeout: firstTimeoutMs, tries, maxTimeout: 2 * firstTimeoutMs },
      );
      resolver.setServers([address]);
      this.#resolvers.push(resolver);
      return resolver;
    });
  }

  async ask(servers: Servers, name: string, type: RecordType): Promise<Reply> {
    let reply: Reply = { kind: 'unknown', reason: 'there is no DNS server to ask' };
    for (const server of [...servers]) {
      reply = await this.#askOne(server, name, type);
      if (reply.kind !== 'unknown') return reply;
      servers.push(...servers.splice(servers.indexOf(server), 1));
    }
    return reply;
  }

  async #askOne(server: Resolver, name: string, type: RecordType): Promise<Reply> {
    if (this.#ended) return { kind: 'unknown', reason: tellFailure('ETIMEOUT') };
    if (this.#left === 0)
      return { kind: 'unknown', reason: 'it takes too many questions to look this domain up' };
    this.#left -= 1;
    try {
      const values = await query(server, name, type);
      // Empty where an alias was all that came.
      return values.length > 0 ? { kind: 'records', values } : { kind: 'none', exists: true };
    } catch (error) {
      const { code = '' } = error as NodeJS.ErrnoException;
      if (code === 'ENODATA' || code === 'ENOTFOUND') return { kind: 'none', exists: code === 'ENODATA' };
      return { kind: 'unknown', reason: tellFailure(code) };
    }
  }

  /** Not everything was asked that was to be. */
  get isSpent(): boolean {
    return this.#ended || this.#left === 0;
  }

  end = (): void => {
    this.#ended = true;
    clearTimeout(this.#timer);
    this.#signal.removeEventListener('abort', this.end);
    for (const resolver of this.#resolvers) resolver.cancel();
  };
}

async function query(resolver: Resolver, name: string, type: RecordType): Promise<string[]> {
  switch (type) {
    case 'TXT':
      return (await resolver.resolveTxt(name)).map((strings) => strings.join(''));
    case 'MX':
      return (await resolver.resolveMx(name)).map(
        ({ priority, exchange }) => `${priority} ${exchange || '.'}`,
      );
    case 'SOA':
      return [String((await resolver.resolveSoa(name)).serial)];
    case 'CNAME':
      return resolver.resolveCname(name);
    case 'NS':
      return resolver.resolveNs(name);
    case 'A':
      return resolver.resolve4(name);
    case 'AAAA':
      return resolver.resolve6(name);
  }
}

function tellFailure(code: string): string {
  return failures[code] ?? `DNS could not be asked (${code})`;
}

const failures: Record<string, string | undefined> = {
  ESERVFAIL: 'the DNS server failed (SERVFAIL)',
  EREFUSED: 'the DNS server refused to answer (REFUSED)',
  ETIMEOUT: 'no answer from DNS came in time',
  ECANCELLED: 'no answer from DNS came in time',
  ECONNREFUSED: 'no DNS server could be reached',
  EBADNAME: 'the name is longer than DNS allows',
  EBADRESP: 'the DNS server answered nonsense',
  EFORMERR: 'the DNS server did not understand the question',
  ENOTIMP: 'the DNS server does not answer such questions',
};
