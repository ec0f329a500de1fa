/**
 * What stands in DNS now: asked of the operator's servers where they are set, else of the domain's own, so that a change is
 * seen at once and not when a cache has forgotten. Guarantees: "there is none" is said only by a server that answers for the
 * zone, everything else is `unknown`; the domain's servers are asked only at public addresses; a check ends by its deadline,
 * asks a bounded number of questions and leaves none open behind it.
 */

import { type DnsAnswer, type DnsClient, makeDnsClient, type RecordType, withDeadline } from '../net/dns.ts';
import { classify } from '../net/ip-addresses.ts';
import { type Answer, type Answers, type Question, questionKey } from './dns-record.ts';
import { parentName, plainName } from './names.ts';

export interface Lookup {
  /** Never rejects. What is not known by the deadline, or when `signal` says to stop, is unknown. */
  ask(questions: readonly Question[], signal: AbortSignal): Promise<Answers>;
  /**
   * One question to every server, at all its addresses: what each of those says that answer, in no order. Empty when none does,
   * or when not all could be asked in time. Never rejects.
   */
  askEveryServer(question: Question, signal: AbortSignal): Promise<Answer[]>;
}

interface LookupOptions {
  /** Answer everything when they are set. */
  dnsServers: readonly string[] | null;
  /**
   * Where to ask a name server that has this address, `ip` or `ip:port`; null when it must not be asked. By default only public
   * addresses are asked: a zone may name any, and must not lead inside.
   */
  serverAt?(address: string): string | null;
  /** They tell who a domain's servers are; null for those of the system. */
  resolvers?: readonly string[] | null;
  deadlineMs?: number;
  maxQuestions?: number;
}

/** What the questions of one check share: when they end, and how many there may be. */
interface Check {
  signal: AbortSignal;
  budget: { left: number };
}

/** Who answers for a name. */
type Zone =
  | { kind: 'served'; servers: readonly string[]; dns: DnsClient }
  /** The name is in no zone because its domain does not exist. */
  | { kind: 'nowhere' }
  | { kind: 'unknown'; reason: string };

type FindZone = (name: string) => Promise<Zone>;

/** For finding out who answers: a dead server among good ones costs this once in a check, and is then left out. */
const probeMs = [700, 1400];
/** Each server is asked twice where it has to be: one that is only hard to reach must not be passed over. */
const onceMs = [1000];
const maxAliases = 8;

/** How far a check goes: to how many of a zone's servers, at how many addresses of each, with how many questions in all. */
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
  const { dnsServers, deadlineMs = 8000 } = options;

  function begin<T>(
    signal: AbortSignal,
    breadth: Breadth,
    work: (check: Check, findZone: FindZone) => Promise<T>,
  ): Promise<T> {
    const budget = { left: options.maxQuestions ?? breadth.questions };
    const run = (signal: AbortSignal) => {
      const check = { signal, budget };
      const operators = dnsServers && serve(check, dnsServers);
      const findZone = operators ? async () => operators : zoneFinder(check, options, breadth);
      return work(check, findZone);
    };
    return withDeadline(deadlineMs, run, signal);
  }

  return {
    ask: (questions, signal) =>
      begin(signal, few, async (check, findZone) => {
        const answered = questions.map(
          async (question) => [questionKey(question), await answer(check, findZone, question)] as const,
        );
        return new Map(await Promise.all(answered));
      }),
    askEveryServer: (question, signal) =>
      begin(signal, every, async (check, findZone) => {
        const said = await answersOfAll(check, findZone, question);
        const isWhole = !check.signal.aborted && check.budget.left > 0;
        return isWhole ? said : [];
      }),
  };
}

function serve(check: Check, servers: readonly string[]): Zone {
  return { kind: 'served', servers, dns: makeDnsClient({ dnsServers: servers, budget: check.budget }) };
}

/** Follows aliases itself: a zone's server answers with an alias that leads out of the zone, and no more. */
async function answer(check: Check, findZone: FindZone, question: Question): Promise<Answer> {
  let name = question.name;
  for (let aliases = 0; aliases <= maxAliases; aliases += 1) {
    const zone = await findZone(name);
    if (zone.kind === 'unknown') return zone;
    if (zone.kind === 'nowhere') return { kind: 'none', why: 'no_such_name' };
    const reply = await askText(check, zone.dns, { ...question, name });
    if (reply.kind !== 'none') return reply;
    const alias = await ask(check, zone.dns, name, 'CNAME');
    if (alias.kind === 'unknown') return alias;
    const [target] = alias.kind === 'records' ? alias.values : [];
    if (target === undefined) return reply;
    name = plainName(target);
  }
  return describeLoop(question);
}

/** The servers of a zone may disagree on where an alias leads: then all of that is asked. */
async function answersOfAll(check: Check, findZone: FindZone, question: Question): Promise<Answer[]> {
  const said: Answer[] = [];
  let names = new Set([question.name]);
  for (let aliases = 0; names.size > 0; aliases += 1) {
    if (aliases > maxAliases) return [describeLoop(question)];
    const targets = new Set<string>();
    const askServer = async (server: string, name: string) => {
      const dns = makeDnsClient({
        dnsServers: [server, server],
        roundsMs: onceMs,
        budget: check.budget,
      });
      const reply = await askText(check, dns, { ...question, name });
      if (reply.kind === 'unknown') return;
      const alias = reply.kind === 'none' ? await ask(check, dns, name, 'CNAME') : reply;
      const [target] = reply.kind === 'none' && alias.kind === 'records' ? alias.values : [];
      if (target === undefined) said.push(alias);
      else targets.add(plainName(target));
    };
    const askName = async (name: string) => {
      const zone = await findZone(name);
      if (zone.kind === 'served') await Promise.all(zone.servers.map((server) => askServer(server, name)));
      else said.push(zone.kind === 'nowhere' ? { kind: 'none', why: 'no_such_name' } : zone);
    };
    await Promise.all([...names].map(askName));
    names = targets;
  }
  return said;
}

async function askText(check: Check, dns: DnsClient, { name, type }: Question): Promise<Answer> {
  if (type === 'TXT') return ask(check, dns, name, type);
  const answer = await ask(check, dns, name, type);
  if (answer.kind !== 'records') return answer;
  const values = answer.values.map(({ priority, exchange }) => `${priority} ${exchange || '.'}`);
  return { kind: 'records', values };
}

/** That there is none, only a server may say. */
async function ask<Type extends RecordType>({ signal }: Check, dns: DnsClient, name: string, type: Type) {
  const answer = await dns.resolve(name, type, signal);
  if (answer.kind !== 'none' || answer.why !== 'impossible_name') return answer;
  const reason = 'the name is longer than DNS allows, or has characters that no host has';
  return { kind: 'unknown', reason } as const;
}

function describeLoop({ name }: Question): Answer {
  return { kind: 'unknown', reason: `${name} is an alias that leads in a circle, or over too many` };
}

/** Walks up from a name to the first that has name servers. Names of one check share the steps. */
function zoneFinder(check: Check, options: LookupOptions, breadth: Breadth): FindZone {
  const { budget } = check;
  const { serverAt = (address) => (classify(address) === 'public' ? address : null) } = options;
  const system = makeDnsClient({ dnsServers: options.resolvers ?? null, budget });
  const known = new Map<string, Promise<Zone>>();

  function find(name: string): Promise<Zone> {
    const zone = known.get(name) ?? walk(name);
    known.set(name, zone);
    return zone;
  }

  async function walk(name: string): Promise<Zone> {
    const servers = await ask(check, system, name, 'NS');
    if (servers.kind === 'unknown') return servers;
    if (servers.kind === 'records') {
      const zone = await reach(name, servers.values);
      // The resolver follows an alias to the servers of whatever it leads to; those know nothing of this name.
      const isAlias = zone.kind === 'unknown' && (await ask(check, system, name, 'CNAME')).kind === 'records';
      if (!isAlias) return zone;
    }
    const parent = parentName(name);
    // A top-level domain's servers would only point back to those of the domain.
    if (parent.includes('.')) return find(parent);
    return servers.kind === 'none' && servers.why === 'no_such_name'
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
    if (good.length === 0) return { kind: 'unknown', reason: describeLame(zone, probes) };
    good.sort((one, other) => compareSerials(other.serial, one.serial));
    return serve(
      check,
      good.map(({ server }) => server),
    );
  }

  /** IPv4 first, and alone where that will do: a machine without IPv6 is common, one without IPv4 is not. */
  async function locate(name: string): Promise<{ at: string[]; isRefused: boolean }> {
    const v4 = await findAddresses(name, 'A');
    const v6 = v4.length < breadth.addresses ? await findAddresses(name, 'AAAA') : [];
    const places = [...v4, ...v6].slice(0, breadth.addresses).map((address) => serverAt(address));
    return { at: places.filter((place) => place !== null), isRefused: places.includes(null) };
  }

  async function findAddresses(name: string, type: 'A' | 'AAAA'): Promise<string[]> {
    const reply = await ask(check, system, name, type);
    return reply.kind === 'records' ? reply.values : [];
  }

  /**
   * Only a server that has the zone's SOA answers for the zone (RFC 1034 §4.2.1). To others, and to what they point to instead,
   * c-ares says "no data", which must not be read as "no record".
   */
  async function probeServer(
    server: string,
    zone: string,
  ): Promise<{ reply: DnsAnswer<number>; serial: number }> {
    const dns = makeDnsClient({ dnsServers: [server], roundsMs: probeMs, budget });
    const reply = await ask(check, dns, zone, 'SOA');
    return { reply, serial: reply.kind === 'records' ? (reply.values[0] ?? 0) : 0 };
  }

  return find;
}

function describeLame(zone: string, probes: readonly { reply: DnsAnswer<number> }[]): string {
  const reasons = probes.flatMap(({ reply }) => (reply.kind === 'unknown' ? [reply.reason] : []));
  return `none of the name servers of ${zone} answers for it (${reasons[0] ?? 'they do not have the zone'})`;
}

/** RFC 1982: serials go round. */
function compareSerials(one: number, other: number): number {
  return (one - other) | 0;
}
