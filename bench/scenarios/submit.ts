/**
 * Mail of 5 KB that programs submit by SMTP on 32 open connections: checked, stored with its recipient in the queue, committed before
 * the 250; against the same mail that comes in by SMTP. Nothing is sent meanwhile.
 */
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { alternate, type Bench, concurrency, type Round } from '../scenario.ts';
import { startService } from '../service.ts';
import { sender } from '../smtp-session.ts';

export const name = 'submit';
export const goal = 0.6;

const turnMs = 2500;
const rounds = 5;

export async function run(bench: Bench): Promise<Round[]> {
  const tools = await startMailTools(bench);
  const service = await startService(bench, {
    ...mailSettings(tools),
    POSTHORN_ROLES: 'api,smtp,deliver',
    POSTHORN_OUTBOUND: 'capture',
    POSTHORN_SEND_RATE: '0',
  });
  await makeIdentity(service);
  await makeIdentity(service, sender);
  const load = { sessions: concurrency, keep: true, durationMs: bench.size(turnMs) };
  const password = service.headers.authorization.replace('Bearer ', '');
  const submit = () => tools.flood(service.submissionPort, { ...load, password });
  const takeIn = () => tools.flood(service.smtpPort, load);
  bench.log('warming up');
  await submit();
  await takeIn();
  return alternate(bench, rounds, { service: submit, control: takeIn });
}
