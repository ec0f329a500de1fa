/** Used by all mail scenarios: a service with an identity, a local DNS server, a sender, and the control. */
import { type Child, startChild, startDnsServer } from './processes.ts';
import { type MailMix, makeSampleMail, type SampleMail } from './sample-mail.ts';
import { alternate, type Bench, concurrency, type Round } from './scenario.ts';
import { type BenchedService, startService } from './service.ts';
import type { LoadQuestion, Paced } from './smtp-load.control.ts';
import { recipient, sender } from './smtp-session.ts';

export interface MailTools {
  /** Address of the DNS server. */
  dnsServer: string;
  flood(
    port: number,
    options: Omit<Extract<LoadQuestion, { kind: 'flood' }>, 'kind' | 'port'>,
  ): Promise<number>;
  pace(port: number, options: { perSecond: number; count: number }): Promise<Paced>;
  /** Sends so many messages by SMTP. */
  send(port: number, options: { sessions: number; count: number }): Promise<void>;
  /** Sends so many messages to `POST /inbound`, or to another path. */
  post(
    service: Pick<BenchedService, 'url' | 'headers'>,
    count: number,
    options?: { path?: string; sessions?: number },
  ): Promise<void>;
}

export async function startMailTools(bench: Bench, given?: SampleMail | MailMix): Promise<MailTools> {
  const sample = given ?? (await makeSampleMail());
  const messages = 'messages' in sample ? sample.messages : [{ from: sender, wire: sample.wire }];
  const dnsServer = await startDnsServer(bench, sample.records);
  const load = startProgram(bench, './smtp-load.control.ts', []);
  const ask = (question: LoadQuestion) => load.ask(question);
  await ask({ kind: 'use', messages });
  return {
    dnsServer,
    flood: async (port, options) => Number(await ask({ kind: 'flood', port, ...options })),
    pace: async (port, options) => (await ask({ kind: 'pace', port, ...options })) as Paced,
    send: async (port, options) => {
      await ask({ kind: 'send', port, ...options });
    },
    post: async ({ url, headers: { authorization } }, count, options = {}) => {
      const { path = `/inbound?recipient=${recipient}`, sessions = concurrency } = options;
      await ask({ kind: 'post', url: `${url}${path}`, authorization, count, sessions });
    },
  };
}

/** Settings of the service for a scenario with mail. */
export function mailSettings({ dnsServer }: MailTools): Record<string, string> {
  return { POSTHORN_DNS_SERVERS: dnsServer, POSTHORN_SMTP_MAX_CONNECTIONS_PER_ADDRESS: '1000' };
}

/** Creates the identity that gets all mail, or another one; returns its id. */
export async function makeIdentity(
  { url, headers }: Pick<BenchedService, 'url' | 'headers'>,
  value = recipient,
): Promise<string> {
  const body = JSON.stringify({ value });
  const answer = await fetch(`${url}/identities`, { method: 'POST', headers, body });
  if (answer.status !== 201) throw new Error(`POST /identities responded ${answer.status}`);
  return ((await answer.json()) as { id: string }).id;
}

const warmUpMs = 3000;
const turnMs = 2500;
const rounds = 7;

/** Messages per second, of the service and of the control. Without webhooks: events are recorded, nothing is delivered. */
export async function compareInbound(
  bench: Bench,
  load: { sessions: number; keep: boolean },
): Promise<Round[]> {
  const tools = await startMailTools(bench);
  const control = startProgram(bench, './scenarios/inbound.control.ts', [tools.dnsServer]);
  const service = await startService(bench, mailSettings(tools));
  await makeIdentity(service);
  const controlPort = Number((await control.printed(/port (\d+)/))[1]);
  bench.log('warming up');
  await tools.flood(service.smtpPort, { ...load, durationMs: bench.size(warmUpMs) });
  await tools.flood(controlPort, { ...load, durationMs: bench.size(warmUpMs) });
  return alternate(bench, rounds, {
    service: () => tools.flood(service.smtpPort, { ...load, durationMs: bench.size(turnMs) }),
    control: () => tools.flood(controlPort, { ...load, durationMs: bench.size(turnMs) }),
  });
}

function startProgram(bench: Bench, file: string, args: readonly string[]): Child {
  return startChild(bench, new URL(file, import.meta.url), args);
}
