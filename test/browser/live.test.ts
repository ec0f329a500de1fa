/** What changes while someone watches: mail, webhooks that fail and are repaired, a replay, DNS, a restart of the service. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { makeDatabase, startTestService, waitFor } from '../harness.ts';
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
  receiver.behaveAt('/repair', answer(500, {}, 'broken'));
  const webhook = await service.makeWebhook(receiver.url('/repair'));
  const id = await receive(service, shop, mail({ subject: 'To repair' }));
  const context = await chromium.open();
  const page = await openPage(context, service, `messages/${id}`);
  await page.getByRole('button', { name: /^Tries of/ }).click();
  await page.getByText('Try 1').waitFor();
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

  await page.getByRole('button', { name: 'Replay' }).click();
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
  await page.getByRole('heading', { name: 'DNS records' }).waitFor();
  await publish(domain, [identity], { mx: true });
  await page.getByRole('button', { name: 'Verify now' }).click();
  await page.getByText('verified', { exact: true }).waitFor();
  await page
    .getByRole('row', { name: /ownership/ })
    .getByText('valid')
    .waitFor();
  await inspect(page, 'domain-verified');

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

test('a long list keeps at most 200 rows in the page', async () => {
  const user = await service.makeUser();
  await service.call('POST', '/identities', { as: user, body: { value: 'many@shop.example' } });
  const [identity] = (await service.call('GET', '/identities', { as: user })).body;
  assert.ok(identity);
  const receiveAs = (n: number) =>
    service.call('POST', '/inbound?recipient=many@shop.example', {
      as: user,
      body: mail({ subject: `Number ${n}` }),
      headers: { 'content-type': 'message/rfc822' },
    });
  for (let n = 0; n < 450; n += 30) await Promise.all(Array.from({ length: 30 }, (_, k) => receiveAs(n + k)));
  const context = await chromium.open();
  const page = await openPage(context, service, 'messages', user);
  const oldest = (await service.call('GET', '/messages?limit=200', { as: user })).headers.get('link');
  assert.ok(oldest);
  await page.locator('.row').first().waitFor();
  const seen = new Set<string>();
  await waitFor('the end of the list', async () => {
    const rows = await page
      .locator('.row')
      .evaluateAll((found) => found.map((row) => row.getAttribute('href') ?? ''));
    assert.ok(rows.length <= 200, `${rows.length} rows`);
    for (const row of rows) seen.add(row);
    await page.evaluate('scrollBy(0, 2000)');
    return seen.size === 450;
  });
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
