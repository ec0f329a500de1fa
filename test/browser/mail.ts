/** Mail for the tests of the dashboard. */
import assert from 'node:assert/strict';
import type { TestService, TestUser } from '../harness.ts';

export interface TestMail {
  subject?: string;
  from?: string;
  to?: string;
  text?: string;
  html?: string;
}

export function mail({
  subject = 'Hello',
  from = 'Ada <ada@customer.example>',
  to = 'sales@shop.example',
  text = 'Hello.',
  html,
}: TestMail): string {
  const type = html === undefined ? 'text/plain' : 'text/html';
  const lines = [`From: ${from}`, `To: ${to}`, `Subject: ${subject}`];
  return [...lines, 'MIME-Version: 1.0', `Content-Type: ${type}; charset=utf-8`, '', html ?? text, ''].join(
    '\r\n',
  );
}

/** The id of the received message. */
export async function receive(
  service: TestService,
  recipient: string,
  raw: string,
  as: TestUser = service.user,
): Promise<string> {
  const { status, text, body } = await service.call(
    'POST',
    `/inbound?recipient=${encodeURIComponent(recipient)}`,
    {
      as,
      body: raw,
      headers: { 'content-type': 'message/rfc822' },
    },
  );
  assert.equal(status, 202, text);
  return body.messageIds[0];
}
