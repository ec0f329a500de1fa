/** A newcomer, from an empty installation to the first delivered mail, in the browser alone; and signing in and out. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createSignInLink } from '../../src/store/sessions.ts';
import { startTestService, waitFor } from '../harness.ts';
import { startReceiver } from '../receiver.ts';
import { inspect, openPage, startChromium } from './chromium.ts';

const chromium = await startChromium();
const receiver = await startReceiver();
after(() => receiver.close());
const service = await startTestService();

test('by link: a button spends the token, once', async () => {
  const { token } = await createSignInLink(service.sql, service.user.userId);
  const context = await chromium.open();
  const page = await context.newPage();
  await page.goto(`${service.url}/app/sign-in#${token}`);
  await page.getByRole('button', { name: 'Sign in with this link' }).click();
  await page.getByRole('heading', { name: 'Home' }).waitFor();
  assert.ok(!page.url().includes(token), 'the token is still in the address of the page');

  const other = await (await chromium.open()).newPage();
  await other.goto(`${service.url}/app/sign-in#${token}`);
  await other.getByRole('button', { name: 'Sign in with this link' }).click();
  await other.getByRole('alert').waitFor();
  await other.context().close();
  await context.close();
});

test('by key: a wrong key is refused in the words of the API, and the browser never keeps the key', async () => {
  const context = await chromium.open();
  const page = await context.newPage();
  await page.goto(`${service.url}/`);
  await page.getByLabel('API key').fill('ph_wrong');
  await page.keyboard.press('Enter');
  await page.getByText('The API key is not valid').waitFor();
  await page.getByLabel('API key').fill(service.user.apiKey);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Home' }).waitFor();
  const kept = await page.evaluate<string>(
    'JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])',
  );
  assert.equal(kept, '[{},{},""]');
  await context.close();
});

test('signing out ends the session, and so does a revoked key', async () => {
  const context = await chromium.open();
  const page = await openPage(context, service);
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();

  const user = await service.makeUser();
  const again = await openPage(context, service, 'api-keys', user);
  await again.getByRole('button', { name: 'Revoke' }).click();
  await again.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
  await again.getByRole('heading', { name: 'Sign in' }).waitFor();
  await context.close();
});

test('from an empty installation to the first delivered mail, by keyboard only', async () => {
  const context = await chromium.open();
  const page = await openPage(context, service);
  await page.getByText('Three steps to the first delivered mail.').waitFor();
  await inspect(page, 'steps-empty');

  await page.getByLabel('Address or domain').focus();
  await page.keyboard.press('Enter');
  await page.getByText('hello@example.com is connected.').waitFor();

  await page.getByLabel('URL of your backend').focus();
  await page.keyboard.press('ControlOrMeta+a');
  await page.keyboard.type(receiver.url('/hooks'));
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.getByText('Events are POSTed to').waitFor();
  await inspect(page, 'steps-last');

  await page.getByRole('button', { name: 'Send a first mail' }).focus();
  await page.keyboard.press('Space');
  const [request] = await receiver.received(1);
  assert.equal(JSON.parse(String(request?.body)).data.message.subject, 'The first mail');
  await page.getByRole('heading', { name: 'The last day' }).waitFor();

  await page.getByRole('link', { name: 'Messages' }).focus();
  await page.keyboard.press('Enter');
  const row = page.getByRole('link', { name: /The first mail/ });
  await row.getByText('delivered').waitFor();
  await row.focus();
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'The first mail' }).waitFor();
  assert.equal(
    await page.evaluate('document.activeElement?.tagName'),
    'H1',
    'the new view does not have the focus',
  );
  await context.close();
});

test('the first load is at most 120 KB gzipped', async () => {
  const context = await chromium.open();
  const page = await context.newPage();
  let bytes = 0;
  page.on('response', async (response) => {
    bytes += (await response.request().sizes()).responseBodySize;
  });
  await page.goto(`${service.url}/app/`, { waitUntil: 'networkidle' });
  await waitFor('the sizes', () => bytes > 0);
  assert.ok(bytes > 10_000 && bytes <= 120 * 1024, `${bytes} bytes`);
  await context.close();
});
