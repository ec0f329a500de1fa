/**
 * The most memory that the server's Node process has resident (VmHWM, its threads included; PostgreSQL is not part of it):
 * while it delivers and then takes mail, and in a process of its own while it takes, announces and hands out one message of
 * 25 MiB. The peak begins anew with each. MB are millions of bytes.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { startDeliveryBench } from '../deliveries.ts';
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { type Bench, concurrency, type Figures } from '../scenario.ts';
import { recipient, SmtpSession, sender } from '../smtp-session.ts';

export const name = 'memory';
export const goal: Figures = { deliverMb: 300, inboundMb: 300, largeMessageMb: 300 };

const deliverCount = 20_000;
const inboundMs = 8000;
/** The most that is taken by default. */
const largeBytes = 25 * 1024 * 1024;

export async function run(bench: Bench): Promise<Figures> {
  const tools = await startMailTools(bench);
  const measure = async (what: string, pid: number, work: () => Promise<unknown>): Promise<number> => {
    resetPeak(pid);
    await work();
    const { peak, now } = readMemory(pid);
    bench.tell(`${what}: at most ${peak.toFixed(0)} MB, ${now.toFixed(0)} MB in the end`);
    return peak;
  };

  const busy = await startDeliveryBench(bench, mailSettings(tools));
  await makeIdentity(busy.service);
  const webhooks = await busy.makeWebhooks(1);
  const deliverMb = await measure('deliver', busy.service.pid, async () => {
    for (let n = 0; n < 2; n += 1) {
      await busy.queue(webhooks, deliverCount);
      await busy.drain(webhooks, deliverCount);
    }
  });
  const inboundMb = await measure('inbound', busy.service.pid, () =>
    tools.flood(busy.service.smtpPort, { sessions: concurrency, keep: true, durationMs: inboundMs }),
  );

  const calm = await startDeliveryBench(bench, mailSettings(tools));
  await makeIdentity(calm.service);
  await calm.turnOn(await calm.makeWebhooks(1, '/mail'), true);
  const wire = makeLargeMail();
  const largeMessageMb = await measure('one message of 25 MiB', calm.service.pid, async () => {
    const receiving = calm.receiveMail(1);
    const session = await SmtpSession.open(calm.service.smtpPort);
    await session.send(wire);
    await session.quit();
    const [told] = await receiving;
    for (const link of told?.links ?? []) await fetchWhole(link);
    if (told?.links.length !== 1 + attachments) throw new Error('The message lacks its attachments');
  });
  return { deliverMb, inboundMb, largeMessageMb };
}

/** Peak and present, in MB. */
function readMemory(pid: number): { peak: number; now: number } {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const read = (key: string) =>
    (Number(new RegExp(`^${key}:\\s+(\\d+) kB`, 'm').exec(status)?.[1]) * 1024) / 1e6;
  return { peak: read('VmHWM'), now: read('VmRSS') };
}

/** proc(5): 5 sets the peak to what is resident now. */
function resetPeak(pid: number): void {
  writeFileSync(`/proc/${pid}/clear_refs`, '5');
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
  // 57 bytes make a line of 76 characters, and its end.
  const lines = Math.floor((largeBytes - rest) / attachments / 78);
  const files = Array.from({ length: attachments }, (_, n) => {
    const text = randomBytes(lines * 57).toString('base64');
    return `${partHead(n + 1)}${text.replace(/.{76}/g, '$&\r\n')}`;
  });
  return Buffer.from(`${head}${files.join('')}--b--\r\n.\r\n`, 'latin1');
}

async function fetchWhole(url: string): Promise<void> {
  const answer = await fetch(url);
  if (answer.status !== 200) throw new Error(`${url} answered ${answer.status}: ${await answer.text()}`);
  for await (const _ of answer.body ?? []);
}
