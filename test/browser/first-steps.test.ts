/** A newcomer, from an empty installation to the first delivered mail, in the browser alone; and signing in and out. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, test } from 'node:test';
import type { Locator, Page } from 'playwright-core';
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
  const button = page.getByRole('button', { name: 'Sign in with this link' });
  await button.waitFor();
  assert.equal(await page.getByLabel('API key').count(), 0, 'a newcomer with a link has to choose');
  await button.click();
  await page.getByRole('heading', { name: 'Home' }).waitFor();
  assert.ok(!page.url().includes(token), 'the token is still in the address of the page');

  const other = await (await chromium.open()).newPage();
  await other.goto(`${service.url}/app/sign-in#${token}`);
  await other.getByRole('button', { name: 'Sign in with this link' }).click();
  await other.getByRole('alert').waitFor();
  await other.getByLabel('API key').waitFor();
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
  await page.getByRole('button', { name: 'Sign out', exact: true }).click();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();

  const user = await service.makeUser();
  const again = await openPage(context, service, 'api-keys', user);
  await again.getByRole('button', { name: 'Revoke' }).click();
  await again.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
  await again.getByRole('heading', { name: 'Sign in' }).waitFor();
  await context.close();
});

/** As a person without a mouse: Tab, until the focus is there. */
async function tabTo(page: Page, target: Locator): Promise<void> {
  for (let presses = 0; presses < 40; presses += 1) {
    await page.keyboard.press('Tab');
    if (await target.evaluate((element) => element.matches(':focus'))) return;
  }
  assert.fail(`Tab does not reach ${target}`);
}

test('from an empty installation to the first delivered mail, by keyboard only', async () => {
  const context = await chromium.open();
  const page = await context.newPage();
  await page.goto(service.url);
  await tabTo(page, page.getByLabel('API key'));
  await page.keyboard.type(service.user.apiKey);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Three steps to the first delivered mail' }).waitFor();
  await inspect(page, 'steps-empty');

  await tabTo(page, page.getByLabel('Address or domain'));
  await page.keyboard.press('Enter');
  await page.getByText('hello@example.com is connected.').waitFor();

  await tabTo(page, page.getByLabel('URL of your backend'));
  await page.keyboard.press('ControlOrMeta+a');
  await page.keyboard.type(receiver.url('/hooks'));
  await tabTo(page, page.getByRole('button', { name: 'Create the webhook' }));
  await page.keyboard.press('Enter');
  await page.getByText('Mail is POSTed to').waitFor();
  await inspect(page, 'steps-last');

  await tabTo(page, page.getByRole('button', { name: 'Send a first mail' }));
  await page.keyboard.press('Space');
  const [request] = await receiver.received(1);
  assert.equal(JSON.parse(String(request?.body)).data.message.subject, 'The first mail');
  await page.getByRole('heading', { name: 'Receive a mail (done)' }).waitFor();
  await page.getByText(`was POSTed to ${receiver.url('/hooks')}, which answered 204.`).waitFor();
  await page.getByRole('heading', { name: 'The last day' }).waitFor();
  const next = page.getByRole('link', { name: 'verify the signature' });
  assert.equal(await next.getAttribute('href'), `${service.url}/docs#description/verifying-signatures`);
  await inspect(page, 'steps-done');

  await tabTo(page, page.getByRole('link', { name: 'Messages' }));
  await page.keyboard.press('Enter');
  const row = page.getByRole('link', { name: /The first mail/ });
  await row.getByText('delivered').waitFor();
  await tabTo(page, row);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'The first mail' }).waitFor();
  assert.equal(
    await page.evaluate('document.activeElement?.tagName'),
    'H1',
    'the new view does not have the focus',
  );

  await tabTo(page, page.getByRole('tab', { name: 'Text' }));
  await page.keyboard.press('ArrowRight');
  await page.getByText('Message-ID:').waitFor();
  await tabTo(page, page.getByRole('button', { name: /^Tries of/ }));
  await page.keyboard.press('Enter');
  await page.getByText('Try 1').waitFor();
  // A question before a deletion keeps the focus, and Escape answers it with no.
  await page.keyboard.press('Home');
  const remove = page.getByRole('button', { name: 'Delete' }).first();
  while (!(await remove.evaluate((element) => element.matches(':focus'))))
    await page.keyboard.press('Shift+Tab');
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'hidden' });
  assert.ok(await remove.evaluate((element) => element.matches(':focus')));
  await context.close();
});

test('the steps tick themselves off when the address and the webhook are made elsewhere', async () => {
  const user = await service.makeUser();
  const context = await chromium.open();
  const page = await openPage(context, service, '', user);
  await page.getByLabel('URL of your backend').fill('http://localhost:4001/');
  await service.call('POST', '/identities', { as: user, body: { value: 'elsewhere@example.com' } });
  await page.getByText('elsewhere@example.com is connected.').waitFor();
  assert.equal(await page.getByLabel('URL of your backend').inputValue(), 'http://localhost:4001/');
  await service.makeWebhook(receiver.url('/hooks'), {}, user);
  await page.getByText('Mail is POSTed to').waitFor();
  await context.close();
});

test('a newcomer without a backend gets a command that is one, and the mail at once when it runs', async () => {
  const gone = await startReceiver();
  const url = gone.url('/');
  await gone.close();
  const context = await chromium.open();
  const page = await openPage(context, service, '', await service.makeUser());
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await page.getByLabel('URL of your backend').fill(url);
  await page.getByRole('button', { name: 'Create the webhook' }).click();
  await page.getByRole('button', { name: 'Send a first mail' }).click();
  await page.getByText(`${url} does not answer (connect_failed).`).waitFor();
  await page.getByText(/The next try is (now|in \d+ (second|minute)s?)\./).waitFor();
  const hand = page.getByRole('heading', { name: 'What needs attention' });
  assert.equal(await hand.count(), 0, 'the same fault is said twice');
  await inspect(page, 'steps-no-backend');
  await page.getByRole('link', { name: 'See every try' }).click();
  await page.getByRole('heading', { name: 'The first mail' }).waitFor();
  await page.getByText('Try 1').waitFor();
  await page.getByRole('button', { name: /^Hide tries of/ }).waitFor();
  await page.goBack();
  await page.getByText(`${url} does not answer (connect_failed).`).waitFor();
  const [command] = await page.getByRole('group', { name: 'small backend' }).allInnerTexts();

  const backend = spawn('sh', ['-c', `exec ${command}`], { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = new Promise((resolve) => backend.once('exit', resolve));
  try {
    await waitFor('the backend', () =>
      fetch(url).then(
        () => true,
        () => false,
      ),
    );
    const done = page.getByRole('heading', { name: 'Receive a mail (done)' });
    // The button goes where a try of its own was faster.
    await Promise.race([page.getByRole('button', { name: 'Try again now' }).click(), done.waitFor()]);
    await done.waitFor();
    const [printed] = await backend.stdout.take(1).toArray();
    assert.match(String(printed), /"subject":"The first mail"/);
  } finally {
    backend.kill();
    await ended;
  }
  await context.close();
});
