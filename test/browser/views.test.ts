/** Every view, with real data and empty: no violation of accessibility rules, light, dark and on a phone; each is kept as a picture. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { startTestService, waitFor } from '../harness.ts';
import { answer, startReceiver } from '../receiver.ts';
import { desktop, inspect, openPage, phone, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const chromium = await startChromium();
const service = await startTestService();
const receiver = await startReceiver();
after(() => receiver.close());
type Made = 'identity' | 'domain' | 'elsewhere' | 'account' | 'provider' | 'webhook' | 'message' | 'sent';
let ids: Record<Made, string>;

before(async () => {
  receiver.behaveAt('/broken', answer(500, {}, 'no space left'));
  const make = async (path: string, body: object) => (await service.call('POST', path, { body })).body;
  const identity = await make('/identities', { value: 'sales@shop.example' });
  const domain = await make('/identities', { value: 'shop.example', incoming_domain: true });
  const webhook = await service.makeWebhook(receiver.url('/hooks'));
  await service.makeWebhook(receiver.url('/broken'), { description: 'the old backend' });
  await make('/suppressions', { address: 'gone@customer.example' });
  const first = await receive(service, 'sales@shop.example', mail({ subject: 'Where is my order?' }));
  const sent = await make('/messages', {
    identityId: identity.id,
    to: 'ada@customer.example',
    subject: 'Your order',
    text: 'It left yesterday.',
  });
  for (let n = 0; n < 5; n += 1)
    await receive(
      service,
      'sales@shop.example',
      mail({ subject: `A question, number ${n}`, from: `c${n}@customer.example` }),
    );
  // No server is there.
  const server = { host: '127.0.0.1', port: 9, username: 'post@shop.example', password: 'secret' };
  const account = await make('/smtp-accounts', { label: 'Mail of the shop', smtp: server, imap: server });
  const elsewhere = await make('/identities', { value: 'post@shop.example', smtp_account_id: account.id });
  const provider = await make('/providers', {
    kind: 'mailgun',
    name: 'Reports to customers',
    credentials: { username: 'postmaster', password: 'secret', signingKey: 'key', region: 'eu' },
  });
  ids = {
    ...{ identity: identity.id, domain: domain.id, elsewhere: elsewhere.id, account: account.id },
    ...{ provider: provider.id, webhook: webhook.id, message: first, sent: sent.id },
  };
  await receiver.received(12);
});

const views: [string, () => string, (page: Page) => Promise<unknown>][] = [
  ['home', () => '', (page) => page.getByRole('heading', { name: 'The last day' }).waitFor()],
  ['messages', () => 'messages', (page) => page.getByText('Where is my order?').waitFor()],
  [
    'message',
    () => `messages/${ids.message}`,
    (page) =>
      page
        .getByRole('button', { name: /^Tries of/ })
        .first()
        .waitFor(),
  ],
  [
    'message-sent',
    () => `messages/${ids.sent}`,
    (page) => page.getByText('ada@customer.example').first().waitFor(),
  ],
  ['write', () => 'write', (page) => page.getByLabel('Subject').waitFor()],
  [
    'identities',
    () => 'identities',
    (page) => page.getByRole('link', { name: 'shop.example', exact: true }).waitFor(),
  ],
  [
    'identity',
    () => `identities/${ids.identity}`,
    (page) => page.getByRole('heading', { name: 'sales@shop.example' }).waitFor(),
  ],
  [
    'domain',
    () => `identities/${ids.domain}`,
    (page) => page.getByRole('heading', { name: 'DNS records' }).waitFor(),
  ],
  ['accounts', () => 'accounts', (page) => page.getByRole('link', { name: 'Mail of the shop' }).waitFor()],
  [
    'account',
    () => `accounts/${ids.account}`,
    (page) => page.getByRole('link', { name: 'post@shop.example' }).waitFor(),
  ],
  [
    'identity-elsewhere',
    () => `identities/${ids.elsewhere}`,
    (page) => page.getByText('connection_refused').first().waitFor(),
  ],
  [
    'providers',
    () => 'providers',
    (page) => page.getByRole('link', { name: 'Reports to customers' }).waitFor(),
  ],
  [
    'provider',
    () => `providers/${ids.provider}`,
    (page) => page.getByRole('heading', { name: 'Enter these at Mailgun' }).waitFor(),
  ],
  ['search', () => 'messages?q=order', (page) => page.getByText('Where is my order?').waitFor()],
  ['webhooks', () => 'webhooks', (page) => page.getByText('the old backend').waitFor()],
  [
    'webhook',
    () => `webhooks/${ids.webhook}`,
    (page) =>
      page
        .getByRole('button', { name: /^Tries of/ })
        .first()
        .waitFor(),
  ],
  [
    'deliveries',
    () => 'deliveries',
    (page) =>
      page
        .getByRole('button', { name: /^Tries of/ })
        .first()
        .waitFor(),
  ],
  [
    'suppressions',
    () => 'suppressions',
    (page) => page.getByRole('cell', { name: 'gone@customer.example' }).waitFor(),
  ],
  ['api-keys', () => 'api-keys', (page) => page.getByRole('button', { name: 'Revoke' }).first().waitFor()],
];

/** The same page in every look: it is loaded once. */
async function inspectLooks(page: Page, name: string): Promise<void> {
  await page.setViewportSize(desktop);
  await page.emulateMedia({ colorScheme: 'light' });
  await assertFits(page);
  await inspect(page, `${name}-light`);
  await page.emulateMedia({ colorScheme: 'dark' });
  await inspect(page, `${name}-dark`);
  await page.emulateMedia({ colorScheme: 'light' });
  await page.setViewportSize(phone);
  await assertFits(page);
  await inspect(page, `${name}-phone`);
}

describe('light, dark and on a phone', async () => {
  const context = await chromium.open();
  let page: Page;
  const requested = new Set<string>();
  before(async () => {
    page = await openPage(context, service);
    page.on('request', (request) => requested.add(`${request.method()} ${new URL(request.url()).pathname}`));
  });

  for (const [name, path, isThere] of views) {
    test(name, async () => {
      await page.goto(`${service.url}/app/${path()}`);
      await isThere(page);
      await inspectLooks(page, name);
    });
  }

  test('the tries of a delivery', async () => {
    await page.goto(`${service.url}/app/messages/${ids.message}`);
    await page.getByRole('button', { name: `Tries of ${receiver.url('/broken')}` }).click();
    await page.getByText('no space left').first().waitFor();
    await inspectLooks(page, 'tries');
  });

  for (const [name, button, field] of [
    ['accounts', 'Connect an account', 'Address'],
    ['providers', 'Connect a provider', 'Server token'],
  ] as const) {
    test(`the form of ${name}`, async () => {
      await page.goto(`${service.url}/app/${name}`);
      await page.getByRole('button', { name: button }).click();
      await page.getByLabel(field).waitFor();
      await inspectLooks(page, `${name}-form`);
    });
  }

  test('a question before a deletion', async () => {
    await page.goto(`${service.url}/app/identities/${ids.domain}`);
    await page.getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('dialog').waitFor();
    await inspectLooks(page, 'question');
  });

  test('a page that does not exist', async () => {
    await page.goto(`${service.url}/app/nothing`);
    await page.getByRole('heading', { name: 'There is no such page' }).waitFor();
    await inspectLooks(page, 'no-such-page');
  });

  test('a message that does not exist', async () => {
    await page.goto(`${service.url}/app/messages/${ids.webhook}`);
    await page.getByRole('alert').waitFor();
    await inspectLooks(page, 'no-such-message');
  });

  test('all of them use only the public API', async () => {
    const { paths } = (await service.call('GET', '/openapi.json')).body;
    const routes = Object.entries<object>(paths).flatMap(([path, methods]) =>
      Object.keys(methods).map(
        (method) => new RegExp(`^${method.toUpperCase()} ${path.replaceAll(/\{\w+\}/g, '[^/]+')}$`),
      ),
    );
    const calls = [...requested].filter((call) => !/^GET \/app\//.test(call));
    assert.ok(calls.length > 15, calls.join());
    assert.deepEqual(
      calls.filter((call) => !routes.some((route) => route.test(call))),
      [],
    );
  });

  test('sign in', async () => {
    const stranger = await (await chromium.open()).newPage();
    await stranger.goto(`${service.url}/app/sign-in#example`);
    await stranger.getByRole('button', { name: 'Sign in with this link' }).waitFor();
    await inspectLooks(stranger, 'sign-in');
  });

  test('empty lists', async () => {
    const empty = await openPage(await chromium.open(), service, '', await service.makeUser());
    const empties = [
      ...['messages', 'identities', 'webhooks', 'deliveries', 'suppressions', 'write'],
      ...['accounts', 'providers'],
    ];
    for (const name of empties) {
      await empty.goto(`${service.url}/app/${name}`);
      await empty.locator('.empty').waitFor();
      await inspect(empty, `${name}-empty`);
    }
  });
});

test('the tab of the browser names the view', async () => {
  const context = await chromium.open();
  const page = await openPage(context, service, 'webhooks');
  await waitFor('the title', async () => (await page.title()) === 'Webhooks · Posthorn');
  await context.close();
});

/** A phone must not scroll sideways. */
async function assertFits(page: Page): Promise<void> {
  const width = await page.evaluate<number>(
    'document.documentElement.scrollWidth - document.documentElement.clientWidth',
  );
  assert.ok(width <= 0, `${page.url()} is ${width} px too wide`);
}
