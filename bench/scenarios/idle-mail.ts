/**
 * Mailboxes elsewhere that wait with IDLE. `p50Ms`: from the EXISTS line that the IMAP server writes to the complete POST at the
 * receiver, 10 messages per second. `accountKb`: how much the resident memory of the service grows with each of 1,000 idle
 * mailboxes, with TLS. The service opens at most 20 connections per second. Every round has a new service.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { startDeliveryBench } from '../deliveries.ts';
import type { ImapQuestion } from '../imap-server.control.ts';
import { mailSettings, startMailTools } from '../mail.ts';
import { connectMailbox } from '../mailboxes.ts';
import { startChild } from '../processes.ts';
import { idPlace, makeSampleMail } from '../sample-mail.ts';
import { type Bench, type Figures, quantile, type Taken, withCleanup } from '../scenario.ts';
import type { BenchedService } from '../service.ts';
import { readCpuMs, readMemory } from '../usage.ts';

export const name = 'idle-mail';
export const goal: Figures = { p50Ms: 50, accountKb: 200 };

const usualMessages = 200;
const everyMs = 100;
const warmUp = 50;
const usualAccounts = 1000;
/** After the last login, until the first garbage is collected. */
const settleMs = 10_000;
const rounds = 3;

export async function run(bench: Bench): Promise<Taken> {
  const taken = { p50Ms: [] as number[], accountKb: [] as number[] };
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    bench.log(`round ${round} of ${rounds}`);
    await withCleanup(async (defer) => {
      const { p50Ms, service } = await measureLatency({ ...bench, defer });
      taken.p50Ms.push(p50Ms);
      taken.accountKb.push(await measureMemory({ ...bench, defer }, service));
    });
  }
  return taken;
}

async function measureLatency(bench: Bench): Promise<{ p50Ms: number; service: BenchedService }> {
  const sample = await makeSampleMail();
  const tools = await startMailTools(bench, sample);
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { service } = deliveries;
  const imap = await startServer(bench);
  await deliveries.turnOn(await deliveries.makeWebhooks(1, '/mail'), true);
  await connectMailbox(service, imap.login, 'first@customer.example');
  await imap.waitUntilIdle(1);
  let sent = 0;
  const measure = async (count: number) => {
    const ids = Array.from({ length: count }, () => {
      sent += 1;
      return String(sent).padStart(idPlace.length, '0');
    });
    const receiving = deliveries.receiveMail(count);
    const messages = ids.map((id) => sample.wire.replace(/\.\r\n$/, '').replace(idPlace, id));
    const toldMs = (await imap.ask({ messages, everyMs })) as number[];
    const arrivals = new Map((await receiving).map(({ messageId, arrivedMs }) => [messageId, arrivedMs]));
    return ids.map((id, n) => (arrivals.get(`<${id}@sender.example>`) ?? Number.NaN) - (toldMs[n] ?? 0));
  };
  await measure(bench.size(warmUp));
  const waits = await bench.measured(() => measure(bench.size(usualMessages)));
  const [least, p50, p99, most] = [0, 0.5, 0.99, 1].map((share) => quantile(waits, share).toFixed(1));
  bench.log(
    `${waits.length} messages: p50 ${p50} ms, p99 ${p99} ms, from ${least} to ${most} ms after EXISTS`,
  );
  return { p50Ms: Number(p50), service };
}

async function measureMemory(bench: Bench, service: BenchedService): Promise<number> {
  const imap = await startServer(bench, 'tls');
  const accounts = bench.size(usualAccounts);
  const before = readMemory(service.pid).now;
  const began = performance.now();
  for (let n = 1; n <= accounts; n += 1)
    await connectMailbox(service, imap.login, `box-${n}@customer.example`);
  await imap.waitUntilIdle(accounts);
  const seconds = (performance.now() - began) / 1000;
  const cpuMs = readCpuMs(service.pid);
  await delay(bench.size(settleMs), undefined, { signal: bench.signal });
  const idleMs = ((readCpuMs(service.pid) - cpuMs) * 1000) / bench.size(settleMs);
  const now = readMemory(service.pid).now;
  const accountKb = ((now - before) * 1000) / accounts;
  bench.log(
    `${accounts} mailboxes idle after ${seconds.toFixed(0)} s: ${before.toFixed(0)} MB before, ${now.toFixed(0)} MB now, ` +
      `${accountKb.toFixed(0)} KB each; ${idleMs.toFixed(0)} ms of processor a second`,
  );
  return accountKb;
}

async function startServer(bench: Bench, ...args: 'tls'[]) {
  const child = startChild(bench, new URL('../imap-server.control.ts', import.meta.url), args);
  const port = Number((await child.printed(/port (\d+)/))[1]);
  const ask = (question: ImapQuestion) => child.ask(question);
  return {
    ask,
    login: { port, secure: args.includes('tls'), username: 'ada', password: 'secret' },
    async waitUntilIdle(count: number): Promise<void> {
      while (Number(await ask('idling')) < count) await delay(50, undefined, { signal: bench.signal });
    },
  };
}
