/** What changes while someone watches: mail, webhooks that fail and are repaired, a replay, DNS, a restart of the service. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { makeDatabase, startTestService } from '../harness.ts';
import { newDomain, startProving } from '../proving.ts';
import { answer, startReceiver } from '../receiver.ts';
import { inspect, openPage, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const chromium = await startChromium();
const receiver = await startReceiver();
after(() => receiver.close());
const { service, add, publish } = await startProving({
  POSTHORN_ACCEPT_UNVERIFIED: 'true',
  POSTHORN_RETRY_SCHEDULE: '3600',
});
const shop = 'sales@shop.example';
await service.call('POST', '/identities', { body: { value: shop } });

test('two browsers see a mail as it arrives', async () => {
  const contexts = await Promise.all([chromium.open(), chromium.open()]);
  const pages = await Promise.all(contexts.map((context) => openPage(context, service, 'messages')));
  for (const page of pages) await page.getByText('Live', { exact: true }).waitFor();
  await receive(service, shop, mail({ subject: 'For both' }));
  for (const page of pages) await page.getByRole('link', { name: /For both/ }).waitFor();
  for (const context of contexts) await context.close();
});

test('a failing webhook is seen, repaired and redelivered', async () => {
  const webhook = await service.makeWebhook(receiver.url('/repair'));
  // The first steps end with the first delivery.
  await receive(service, shop, mail({ subject: 'Before the fault' }));
  await receiver.received(1, ({ url }) => url === '/repair');
  receiver.behaveAt('/repair', answer(500, {}, 'broken'));
  const id = await receive(service, shop, mail({ subject: 'To repair' }));
  const context = await chromium.open();
  const page = await openPage(context, service);
  const hand = page.getByRole('region', { name: 'What needs attention' });
  await hand
    .getByText(/refused an event \(it answered 500\)\. The next try is in (1 hour|\d+ minutes)\./)
    .waitFor();
  await inspect(page, 'home-failing');
  await hand.getByRole('link', { name: receiver.url('/repair') }).click();
  await page.getByRole('link', { name: 'To repair' }).click();
  assert.ok(page.url().endsWith(id));
  await page.getByRole('button', { name: /^Tries of/ }).click();
  await page.getByText('Try 1').waitFor();
  await page.getByText('"subject": "To repair"').first().waitFor();
  await page.getByText('broken').first().waitFor();

  receiver.behaveAt('/repair', answer(200, {}, 'thanks'));
  await page.getByRole('button', { name: 'Redeliver' }).click();
  await page.getByText('Try 2').waitFor();
  await page.getByText('thanks').waitFor();
  await page.getByRole('row').getByText('delivered', { exact: true }).first().waitFor();
  await inspect(page, 'repaired');
  await service.call('DELETE', `/webhooks/${webhook.id}`);
  await context.close();
});

test('the list has the state of every message, however many wait for their next try', async () => {
  const user = await service.makeUser();
  receiver.behaveAt('/down', answer(503, {}, ''));
  await service.makeWebhook(receiver.url('/down'), {}, user);
  await service.call('POST', '/identities', { as: user, body: { value: 'busy@shop.example' } });
  for (let n = 0; n < 70; n += 1) {
    const options = {
      as: user,
      body: mail({ subject: `${n}` }),
      headers: { 'content-type': 'message/rfc822' },
    };
    await service.call('POST', '/inbound?recipient=busy@shop.example', options);
  }
  const context = await chromium.open();
  const page = await openPage(context, service, 'messages', user);
  await page.locator('.row').nth(69).locator('.badge').waitFor();
  assert.equal(await page.locator('.row .badge').count(), 70);
  await context.close();
});

test('a webhook is created, tested, and gets past events by a replay', async () => {
  await receive(service, shop, mail({ subject: 'Before the webhook' }));
  const context = await chromium.open();
  const page = await openPage(context, service, 'webhooks');
  await page.getByRole('button', { name: 'Create a webhook' }).click();
  await page.getByLabel('URL').fill('not a URL');
  await page.getByRole('button', { name: 'Create the webhook' }).click();
  await page.getByLabel('URL').and(page.locator('[aria-invalid=true]')).waitFor();
  await inspect(page, 'field-problem');
  await page.getByLabel('URL').fill(receiver.url('/new'));
  await page.getByRole('button', { name: 'Create the webhook' }).click();
  await page.getByText('whsec_').waitFor();
  await inspect(page, 'webhook-created');
  await page.getByRole('link', { name: 'Send a test event' }).click();
  await page.getByRole('button', { name: 'Send a test event' }).click();
  await page.getByText('Answered 204').waitFor();

  // The replay waits for the lock, so that its progress is seen for certain.
  await service.sql.begin(async (sql) => {
    await sql`lock table events in access exclusive mode`;
    await page.getByRole('button', { name: 'Replay' }).click();
    await page.getByText('running', { exact: true }).waitFor();
    await page.getByText('0 events read, 0 deliveries queued.').waitFor();
  });
  await page.getByText('done', { exact: true }).waitFor();
  await receiver.received(
    1,
    ({ url, body }) => url === '/new' && String(body).includes('Before the webhook'),
  );
  await page.getByRole('link', { name: 'Before the webhook' }).waitFor();
  await inspect(page, 'replay');

  await page.getByRole('button', { name: 'Switch off' }).click();
  await page.getByRole('button', { name: 'Switch on' }).waitFor();
  await page.getByRole('button', { name: 'Show the secret' }).click();
  await page.getByText('whsec_').waitFor();
  await context.close();
});

test('DNS records turn green, and a domain is deleted', async () => {
  const domain = newDomain();
  const identity = await add(domain, { incoming_domain: true });
  const context = await chromium.open();
  const page = await openPage(context, service, `identities/${identity.id}`);
  const record = (name: string) => page.getByRole('row', { name });
  const verify = page.getByRole('button', { name: 'Verify now' });
  await verify.click();
  await record('ownership').getByText('missing').waitFor();
  const { body: checked } = await service.call('GET', `/identities/${identity.id}`);
  const [{ note }] = JSON.parse(checked.dns_records);
  await record('ownership').getByText(note).waitFor();
  await publish(domain, [identity]);
  // Not by the button: the open page sees what others check.
  await service.call('POST', `/identities/${identity.id}/verify`);
  await record('ownership').getByText('valid').waitFor();
  await record('mail host').getByText('missing').waitFor();
  await page.getByText('pending', { exact: true }).waitFor();
  await publish(domain, [identity], { mx: true });
  await verify.click();
  await record('mail host').getByText('valid').waitFor();
  await page.getByText('verified', { exact: true }).waitFor();
  await inspect(page, 'domain-verified');

  await publish(domain, []);
  await verify.click();
  await page.getByText('stays verified until').first().waitFor();
  await page.getByRole('link', { name: 'Home' }).click();
  await page.getByRole('region', { name: 'What needs attention' }).getByText('lost DNS records').waitFor();
  await page.getByRole('link', { name: domain }).click();

  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('heading', { name: 'Identities' }).waitFor();
  assert.equal((await service.call('GET', `/identities/${identity.id}`)).status, 404);
  await context.close();
});

test('a mail is written, and a reply joins its conversation', async () => {
  const id = await receive(service, shop, mail({ subject: 'Please answer' }));
  const context = await chromium.open();
  const page = await openPage(context, service, `messages/${id}`);
  await page.getByRole('button', { name: 'Reply' }).click();
  assert.equal(await page.getByLabel('To').inputValue(), 'ada@customer.example');
  await page.getByRole('textbox', { name: 'Text' }).fill('Here is the answer.');
  await page.getByRole('button', { name: 'Send' }).click();
  await page.getByRole('heading', { name: 'Re: Please answer' }).waitFor();
  await page.getByRole('link', { name: 'Please answer', exact: true }).waitFor();
  await context.close();
});

test('an open page goes on after a restart of the service', async () => {
  const { url: databaseUrl, drop } = await makeDatabase();
  const first = await startTestService({ DATABASE_URL: databaseUrl });
  await first.call('POST', '/identities', { body: { value: shop } });
  const context = await chromium.open();
  const page = await openPage(context, first, 'messages');
  await page.getByText('Live', { exact: true }).waitFor();
  await first.stop();
  await page.getByText('Connecting …').waitFor();
  const second = await startTestService({ DATABASE_URL: databaseUrl, PORT: new URL(first.url).port });
  await page.getByText('Live', { exact: true }).waitFor();
  await receive(second, shop, mail({ subject: 'After the restart' }));
  await page.getByRole('link', { name: /After the restart/ }).waitFor();
  await context.close();
  await second.stop();
  await drop();
});
