/** What only a phone has: cells that say the name of their column, and a menu. Every view is inspected on a phone with the views. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startTestService } from '../harness.ts';
import { startReceiver } from '../receiver.ts';
import { desktop, inspect, openPage, phone, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const chromium = await startChromium();
const service = await startTestService();
const receiver = await startReceiver();
after(() => receiver.close());

test('every cell of a table says the name of its column, except the cell that names the row', async () => {
  const make = async (path: string, body: object) => (await service.call('POST', path, { body })).body;
  const identity = await make('/identities', { value: 'sales@shop.example' });
  await service.makeWebhook(receiver.url('/hooks'));
  await make('/suppressions', { address: 'gone@customer.example' });
  await receive(service, identity.value, mail({ subject: 'Where is my order?' }));
  const to = 'ada@customer.example';
  const sent = await make('/messages', { identityId: identity.id, to, subject: 'Your order', text: 'Soon.' });
  await receiver.received(1);

  const context = await chromium.open({ viewport: phone });
  const page = await openPage(context, service);
  for (const [path, wanted] of [
    ['identities', ['', 'Kind: ', 'State: ', 'Connected: ']],
    ['webhooks', ['', 'Events: ', 'State: ']],
    ['deliveries', ['', 'Event: ', 'State: ', 'Last answer: ', 'Tries: ', 'Made: ', '']],
    ['suppressions', ['', 'Reason: ', 'Since: ', '']],
    ['api-keys', ['', 'Key: ', 'Scope: ', 'Last used: ', 'Expires: ', '']],
    [`messages/${sent.id}`, ['', 'State: ', 'Last reply of a mail server: ', 'Tries: ']],
  ] as const) {
    await page.goto(`${service.url}/app/${path}`);
    await page.locator('tbody tr').first().waitFor();
    const names = await page.evaluate<string[]>(
      `[...document.querySelector('tbody tr').cells].map((cell) => getComputedStyle(cell, '::before').content)`,
    );
    assert.deepEqual(
      names.map((content) => content.replace(/^(none|normal)$|"/g, '')),
      wanted,
      path,
    );
  }
  await inspect(page, 'table-phone');
  await page.goto(`${service.url}/app/api-keys`);
  await page.getByRole('button', { name: 'Revoke' }).waitFor();
  await inspect(page, 'keys-phone');
  await context.close();
});

test('a menu leads to every view, and closes behind the link', async () => {
  const context = await chromium.open({ viewport: phone });
  const page = await openPage(context, service);
  const menu = page.getByRole('button', { name: 'Menu' });
  const keys = page.getByRole('link', { name: 'API keys' });
  await menu.waitFor();
  await page.getByText('Live', { exact: true }).waitFor();
  assert.equal(await keys.isVisible(), false);
  await inspect(page, 'menu-closed');
  await menu.click();
  await keys.waitFor();
  await page.getByRole('button', { name: 'Sign out' }).waitFor();
  await inspect(page, 'menu-open');
  await keys.click();
  await page.getByRole('heading', { name: 'API keys' }).waitFor();
  assert.equal(await keys.isVisible(), false);

  await menu.click();
  await keys.click();
  await keys.waitFor({ state: 'hidden' });

  await page.setViewportSize(desktop);
  await keys.waitFor();
  assert.equal(await menu.isVisible(), false);
  await context.close();
});
