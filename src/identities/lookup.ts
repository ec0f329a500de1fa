/**
 * Reads records from DNS: from the operator's servers if they are set, otherwise from the domain's own name servers, which show a
 * change at once, without a cache. Guarantees: only a server that is authoritative for the zone can say that there is no record,
 * every other failure is `unknown`; name servers are asked at public addresses only; a lookup ends at its deadline, and asks a
 * bounded number of questions.
 */

import { type DnsAnswer, type DnsClient, makeDnsClient, type RecordType, withDeadline } from '../net/dns.ts';
import { classify } from '../net/ip-addresses.ts';
import { type DnsQuestion, questionKey, type RecordAnswer, type RecordAnswers } from './dns-record.ts';
import { parentName, plainName } from './names.ts';

export interface Lookup {
  /** Never rejects. What has no answer by the deadline, or when `signal` aborts, is unknown. */
  ask(questions: readonly DnsQuestion[], signal: AbortSignal): Promise<RecordAnswers>;
  /**
   * Asks every name server at all its addresses, and returns the answers in no order. Empty if no server answers, or if not all
   * could be asked in time. Never rejects.
   */
  askEveryServer(question: DnsQuestion, signal: AbortSignal): Promise<RecordAnswer[]>;
}

interface LookupOptions {
  /** The operator's servers; null to ask the domain's own. */
  dnsServers: readonly string[] | null;
  /**
   * Maps the address of a name server to the `ip` or `ip:port` to ask, or to null if it must not be asked. The default allows
   * public addresses only: a zone could name an address inside the operator's network.
   */
  serverAt?(address: string): string | null;
  /** For finding the domain's name servers; null for the resolvers of the system. */
  resolvers?: readonly string[] | null;
  deadlineMs?: number;
  maxQuestions?: number;
}

/** All questions of one lookup share these. */
interface Limits {
  signal: AbortSignal;
  budget: { left: number };
}

type Zone =
  | { kind: 'served'; servers: readonly string[]; dns: DnsClient }
  | { kind: 'no_such_domain' }
  | { kind: 'unknown'; reason: string };

type FindZone = (name: string) => Promise<Zone>;

/** For finding the servers that answer: a dead server costs this time once in a lookup. */
const probeMs = [700, 1400];
const everyServerMs = [1000];
const maxAliases = 8;

interface Breadth {
  servers: number;
  addressesEach: number;
  questions: number;
}
const few: Breadth = { servers: 4, addressesEach: 1, questions: 100 };
/**
 * 13 servers fit in one DNS packet; several addresses may be several machines. Each is asked for its SOA, the record and an alias,
 * partly twice: 13 · 8 · 4 questions, and some for the names of the servers.
 */
const every: Breadth = { servers: 13, addressesEach: 8, questions: 500 };

export function makeLookup(options: LookupOptions): Lookup {
  const { dnsServers, deadlineMs = 8000 } = options;

  function run<T>(
    signal: AbortSignal,
    breadth: Breadth,
    work: (limits: Limits, findZone: FindZone) => Promise<T>,
  ): Promise<T> {
    const budget = { left: options.maxQuestions ?? breadth.questions };
    const start = (signal: AbortSignal) => {
      const limits = { signal, budget };
      const operators = dnsServers && serve(limits, dnsServers);
      return work(limits, operators ? async () => operators : zoneFinder(limits, options, breadth));
    };
    return withDeadline(deadlineMs, start, signal);
  }

  return {
    ask: (questions, signal) =>
      run(signal, few, async (limits, findZone) => {
        const answered = questions.map(
          async (question) => [questionKey(question), await answer(limits, findZone, question)] as const,
        );
        return new Map(await Promise.all(answered));
      }),
    askEveryServer: (question, signal) =>
      run(signal, every, async (limits, findZone) => {
        const answers = await answersOfAll(limits, findZone, question);
        const isComplete = !limits.signal.aborted && limits.budget.left > 0;
        return isComplete ? answers : [];
      }),
  };
}

function serve(limits: Limits, servers: readonly string[]): Zone {
  return { kind: 'served', servers, dns: makeDnsClient({ dnsServers: servers, budget: limits.budget }) };
}

/** Follows aliases itself, because a zone's server does not follow an alias that leads out of the zone. */
async function answer(limits: Limits, findZone: FindZone, question: DnsQuestion): Promise<RecordAnswer> {
  let name = question.name;
  for (let aliases = 0; aliases <= maxAliases; aliases += 1) {
    const zone = await findZone(name);
    if (zone.kind === 'unknown') return zone;
    if (zone.kind === 'no_such_domain') return { kind: 'none', why: 'no_such_name' };
    const reply = await askText(limits, zone.dns, { ...question, name });
    if (reply.kind !== 'none') return reply;
    const alias = await ask(limits, zone.dns, name, 'CNAME');
    if (alias.kind === 'unknown') return alias;
    const [target] = alias.kind === 'records' ? alias.values : [];
    if (target === undefined) return reply;
    name = plainName(target);
  }
  return describeLoop(question);
}

/** The servers of a zone may name different targets of an alias: then all targets are asked. */
async function answersOfAll(
  limits: Limits,
  findZone: FindZone,
  question: DnsQuestion,
): Promise<RecordAnswer[]> {
  const answers: RecordAnswer[] = [];
  let names = new Set([question.name]);
  for (let aliases = 0; names.size > 0; aliases += 1) {
    if (aliases > maxAliases) return [describeLoop(question)];
    const targets = new Set<string>();
    const askServer = async (server: string, name: string) => {
      // Twice: a server that is only hard to reach must not be left out.
      const dnsServers = [server, server];
      const dns = makeDnsClient({ dnsServers, roundsMs: everyServerMs, budget: limits.budget });
      const reply = await askText(limits, dns, { ...question, name });
      if (reply.kind === 'unknown') return;
      const alias = reply.kind === 'none' ? await ask(limits, dns, name, 'CNAME') : reply;
      const [target] = reply.kind === 'none' && alias.kind === 'records' ? alias.values : [];
      if (target === undefined) answers.push(alias);
      else targets.add(plainName(target));
    };
    const askName = async (name: string) => {
      const zone = await findZone(name);
      if (zone.kind === 'served') await Promise.all(zone.servers.map((server) => askServer(server, name)));
      else answers.push(zone.kind === 'no_such_domain' ? { kind: 'none', why: 'no_such_name' } : zone);
    };
    await Promise.all([...names].map(askName));
    names = targets;
  }
  return answers;
}

async function askText(limits: Limits, dns: DnsClient, { name, type }: DnsQuestion): Promise<RecordAnswer> {
  if (type === 'TXT') return ask(limits, dns, name, type);
  const answer = await ask(limits, dns, name, type);
  if (answer.kind !== 'records') return answer;
  const values = answer.values.map(({ priority, exchange }) => `${priority} ${exchange || '.'}`);
  return { kind: 'records', values };
}

/** A name that was never asked is unknown: only a server can say that there is no record. */
async function ask<Type extends RecordType>({ signal }: Limits, dns: DnsClient, name: string, type: Type) {
  const answer = await dns.resolve(name, type, signal);
  if (answer.kind !== 'none' || answer.why !== 'impossible_name') return answer;
  const reason = 'the name is too long for DNS, or has characters that a host name cannot have';
  return { kind: 'unknown', reason } as const;
}

function describeLoop({ name }: DnsQuestion): RecordAnswer {
  return { kind: 'unknown', reason: `${name} is a CNAME whose chain is a loop, or too long` };
}

/** Walks up from a name to the first that has name servers. The names of one lookup share the results. */
function zoneFinder(limits: Limits, options: LookupOptions, breadth: Breadth): FindZone {
  const { budget } = limits;
  const { serverAt = (address) => (classify(address) === 'public' ? address : null) } = options;
  const system = makeDnsClient({ dnsServers: options.resolvers ?? null, budget });
  const known = new Map<string, Promise<Zone>>();

  function find(name: string): Promise<Zone> {
    const zone = known.get(name) ?? walk(name);
    known.set(name, zone);
    return zone;
  }

  async function walk(name: string): Promise<Zone> {
    const servers = await ask(limits, system, name, 'NS');
    if (servers.kind === 'unknown') return servers;
    if (servers.kind === 'records') {
      const zone = await reach(name, servers.values);
      // For an alias the resolver returns the servers of its target, which do not have this name.
      const isAlias =
        zone.kind === 'unknown' && (await ask(limits, system, name, 'CNAME')).kind === 'records';
      if (!isAlias) return zone;
    }
    const parent = parentName(name);
    // The servers of a top-level domain would only refer back to the servers of the domain.
    if (parent.includes('.')) return find(parent);
    return servers.kind === 'none' && servers.why === 'no_such_name'
      ? { kind: 'no_such_domain' }
      : { kind: 'unknown', reason: `DNS has no name servers for ${name}` };
  }

  /** The newest serial first: a secondary server may not have the latest change yet. */
  async function reach(zone: string, names: readonly string[]): Promise<Zone> {
    const servers = await Promise.all(names.slice(0, breadth.servers).map((name) => locate(name)));
    const open = [...new Set(servers.flatMap(({ at }) => at))];
    if (open.length === 0) {
      return {
        kind: 'unknown',
        reason: servers.some(({ isRefused }) => isRefused)
          ? `the name servers of ${zone} have addresses that are not public; the operator can set POSTHORN_DNS_SERVERS to use them`
          : `the names of the name servers of ${zone} could not be resolved`,
      };
    }
    const replies = await Promise.all(open.map((server) => askSerial(server, zone)));
    const good = open.flatMap((server, n) => {
      const reply = replies[n];
      return reply?.kind === 'records' ? [{ server, serial: reply.values[0] ?? 0 }] : [];
    });
    if (good.length === 0) return { kind: 'unknown', reason: describeLame(zone, replies) };
    good.sort((one, other) => compareSerials(other.serial, one.serial));
    const authoritative = good.map(({ server }) => server);
    return serve(limits, authoritative);
  }

  /** IPv4 first: a machine without IPv6 is common, one without IPv4 is not. */
  async function locate(name: string): Promise<{ at: string[]; isRefused: boolean }> {
    const v4 = await findAddresses(name, 'A');
    const v6 = v4.length < breadth.addressesEach ? await findAddresses(name, 'AAAA') : [];
    const places = [...v4, ...v6].slice(0, breadth.addressesEach).map((address) => serverAt(address));
    return { at: places.filter((place) => place !== null), isRefused: places.includes(null) };
  }

  async function findAddresses(name: string, type: 'A' | 'AAAA'): Promise<string[]> {
    const reply = await ask(limits, system, name, type);
    return reply.kind === 'records' ? reply.values : [];
  }

  /**
   * A server without the zone's SOA is not authoritative (RFC 1034 §4.2.1). c-ares reports its answers and referrals as "no
   * data", which must not be read as "no record".
   */
  function askSerial(server: string, zone: string): Promise<DnsAnswer<number>> {
    const dns = makeDnsClient({ dnsServers: [server], roundsMs: probeMs, budget });
    return ask(limits, dns, zone, 'SOA');
  }

  return find;
}

function describeLame(zone: string, replies: readonly DnsAnswer<number>[]): string {
  const reasons = replies.flatMap((reply) => (reply.kind === 'unknown' ? [reply.reason] : []));
  return `no name server of ${zone} answered for this zone (${reasons[0] ?? 'they do not have the zone'})`;
}

/** RFC 1982: serial numbers wrap around. */
function compareSerials(one: number, other: number): number {
  return (one - other) | 0;
}
