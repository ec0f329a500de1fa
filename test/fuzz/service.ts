/**
 * The whole service inside the fuzzing process: an uncaught exception ends this process, and an error in the log is a failure.
 */
import { randomBytes } from 'node:crypto';
import { Writable } from 'node:stream';
import { readConfig } from '../../src/config.ts';
import { makeLog } from '../../src/lib/log.ts';
import { startService } from '../../src/main.ts';
import { type DnsServer, startDns } from '../dns.ts';
import { type Answer, type CallOptions, callUrl, type TestUser } from '../harness.ts';

export interface FuzzedService {
  url: string;
  smtpPort: number;
  adminToken: string;
  dns: DnsServer;
  makeUser(): Promise<TestUser>;
  call(method: string, path: string, options: CallOptions): Promise<Answer>;
  /** Throws when an error was logged since the last call. */
  assertNoErrors(): void;
  stop(): Promise<void>;
}

export async function startFuzzedService(settings: Record<string, string>): Promise<FuzzedService> {
  const errors: string[] = [];
  const stream = new Writable({
    write(line, _encoding, done) {
      errors.push(String(line));
      done();
    },
  });
  const dns = await startDns();
  const adminToken = randomBytes(20).toString('hex');
  const config = readConfig({
    PORT: '0',
    POSTHORN_SMTP_PORT: '0',
    POSTHORN_SUBMISSION_PORT: '0',
    POSTHORN_RATE_LIMIT: '0',
    POSTHORN_ADMIN_TOKEN: adminToken,
    POSTHORN_DNS_SERVERS: dns.address,
    ...settings,
  });
  const service = await startService(config, makeLog({ level: 'error', json: true, stream }));
  const url = String(service.url);

  async function makeUser(): Promise<TestUser> {
    const headers = { authorization: `Bearer ${adminToken}` };
    const post = async (path: string, body: object) =>
      expect(await callUrl('POST', `${url}${path}`, { body, headers }), 201).body;
    const email = `${randomBytes(8).toString('hex')}@users.example`;
    const { userId } = await post('/admin/users', { email });
    const { apiKey } = await post(`/admin/users/${userId}/api-keys`, {});
    return { userId, email, apiKey };
  }

  return {
    ...{ url, smtpPort: service.smtpPort ?? 0, adminToken, dns, makeUser },
    call: (method, path, options) => callUrl(method, `${url}${path}`, options),
    assertNoErrors() {
      const logged = errors.splice(0);
      if (logged.length > 0) throw new Error(`An error was logged: ${logged.join('')}`);
    },
    async stop() {
      await service.stop();
      await dns.close();
    },
  };
}

export function expect(answer: Answer, status: number): Answer {
  if (answer.status !== status) throw new Error(`${answer.status} instead of ${status}: ${answer.text}`);
  return answer;
}
