/**
 * The peak resident memory (VmHWM) of the server's Node process, with its worker threads and without PostgreSQL: while it delivers,
 * while it receives mail, and (in another process) while it receives, delivers and serves one message of 25 MiB. Every round
 * has new processes, and the peak is reset for each figure. MB are millions of bytes.
 */
import { randomBytes } from 'node:crypto';
import { startDeliveryBench } from '../deliveries.ts';
import { type MailTools, mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { type Bench, concurrency, type Figures, type Taken, withCleanup } from '../scenario.ts';
import { recipient, SmtpSession, sender } from '../smtp-session.ts';
import { readMemory, resetPeak } from '../usage.ts';

export const name = 'memory';
export const goal: Figures = { deliverMb: 300, inboundMb: 300, largeMessageMb: 300 };

const deliverCount = 20_000;
const inboundMs = 8000;
const rounds = 3;
/** The default size limit of a message. */
const largeBytes = 25 * 1024 * 1024;

export async function run(bench: Bench): Promise<Taken> {
  const tools = await startMailTools(bench);
  const wire = makeLargeMail();
  const taken: Taken = {};
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    bench.log(`round ${round} of ${rounds}`);
    const figures = await withCleanup(async (defer) => ({
      ...(await measureBusy({ ...bench, defer }, tools)),
      ...(await measureLarge({ ...bench, defer }, tools, wire)),
    }));
    for (const [name, figure] of Object.entries(figures)) taken[name] = [...(taken[name] ?? []), figure];
  }
  return taken;
}

async function measureBusy(bench: Bench, tools: MailTools): Promise<Figures> {
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { pid, smtpPort } = deliveries.service;
  await makeIdentity(deliveries.service);
  const webhooks = await deliveries.makeWebhooks(1);
  const deliverMb = await measurePeak(bench, 'deliver', pid, async () => {
    for (let n = 0; n < 2; n += 1) {
      await deliveries.queue(webhooks, bench.size(deliverCount));
      await deliveries.drain(webhooks, bench.size(deliverCount));
    }
  });
  const flood = { sessions: concurrency, keep: true, durationMs: bench.size(inboundMs) };
  const inboundMb = await measurePeak(bench, 'inbound', pid, () => tools.flood(smtpPort, flood));
  return { deliverMb, inboundMb };
}

async function measureLarge(bench: Bench, tools: MailTools, wire: Buffer): Promise<Figures> {
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { pid, smtpPort } = deliveries.service;
  await makeIdentity(deliveries.service);
  await deliveries.turnOn(await deliveries.makeWebhooks(1, '/mail'), true);
  const largeMessageMb = await measurePeak(bench, 'one message of 25 MiB', pid, async () => {
    const receiving = deliveries.receiveMail(1);
    const session = await SmtpSession.open(smtpPort);
    await session.send(wire);
    await session.quit();
    const [mail] = await receiving;
    for (const link of mail?.links ?? []) await fetchWhole(link);
    if (mail?.links.length !== 1 + attachments)
      throw new Error('The webhook call lacks attachments of the message');
  });
  return { largeMessageMb };
}

export async function measurePeak(
  bench: Bench,
  what: string,
  pid: number,
  work: () => Promise<unknown>,
): Promise<number> {
  resetPeak(pid);
  await bench.measured(work);
  const { peak, now } = readMemory(pid);
  bench.log(`${what}: peak ${peak.toFixed(0)} MB, ${now.toFixed(0)} MB at the end`);
  return peak;
}

const attachments = 2;

function makeLargeMail(): Buffer {
  const head = [
    `From: Ada <${sender}>\r\nTo: <${recipient}>\r\nSubject: Large\r\nMessage-ID: <large@sender.example>`,
    'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n',
    '--b\r\nContent-Type: text/plain\r\n\r\nTwo files.\r\n',
  ].join('\r\n');
  const partHead = (n: number) =>
    `--b\r\nContent-Type: application/octet-stream\r\nContent-Disposition: attachment; filename=${n}.bin\r\n` +
    'Content-Transfer-Encoding: base64\r\n\r\n';
  const rest = head.length + attachments * partHead(1).length + '--b--\r\n'.length;
  // 57 bytes become one base64 line of 76 characters.
  const lines = Math.floor((largeBytes - rest) / attachments / 78);
  const files = Array.from({ length: attachments }, (_, n) => {
    const text = randomBytes(lines * 57).toString('base64');
    return `${partHead(n + 1)}${text.replace(/.{76}/g, '$&\r\n')}`;
  });
  return Buffer.from(`${head}${files.join('')}--b--\r\n.\r\n`, 'latin1');
}

async function fetchWhole(url: string): Promise<void> {
  const answer = await fetch(url);
  if (answer.status !== 200) throw new Error(`${url} responded ${answer.status}: ${await answer.text()}`);
  for await (const _ of answer.body ?? []);
}
