/**
 * Mail of 5 KB that programs submit, 32 at once: checked, stored with its recipient in the queue, committed before the answer; against
 * the same mail that comes in by SMTP. By `POST /messages` with the finished message. Nothing is sent meanwhile.
 */
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { alternate, type Bench, concurrency, type Round } from '../scenario.ts';
import { startService } from '../service.ts';
import { recipient, sender } from '../smtp-session.ts';

export const name = 'submit';
export const goal = 0.6;

const usualCount = 4000;
const turnMs = 2500;
const rounds = 5;

export async function run(bench: Bench): Promise<Round[]> {
  const count = bench.size(usualCount);
  const tools = await startMailTools(bench);
  const service = await startService(bench, {
    ...mailSettings(tools),
    POSTHORN_ROLES: 'api,smtp,deliver',
    POSTHORN_OUTBOUND: 'capture',
    POSTHORN_SEND_RATE: '0',
  });
  await makeIdentity(service);
  const identityId = await makeIdentity(service, sender);
  const submit = async () => {
    const began = performance.now();
    await tools.post(service, count, `/messages?identity_id=${identityId}&recipient=${recipient}`);
    return count / ((performance.now() - began) / 1000);
  };
  const takeIn = () =>
    tools.flood(service.smtpPort, { sessions: concurrency, keep: true, durationMs: bench.size(turnMs) });
  bench.log('warming up');
  await submit();
  await takeIn();
  return alternate(bench, rounds, { service: submit, control: takeIn });
}
