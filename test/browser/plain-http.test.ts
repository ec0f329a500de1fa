/** The page on plain http at a name other than localhost, as in a LAN: browsers give it neither a clipboard nor a way to say where a request is from. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startTestService } from '../harness.ts';
import { inspect, openPage, startChromium } from './chromium.ts';

const name = 'posthorn.lan';
const chromium = await startChromium([`--host-resolver-rules=MAP ${name} 127.0.0.1`]);
const service = await startTestService();

test('the sign-in says why it cannot work there, and what to do', async () => {
  const context = await chromium.open();
  const page = await context.newPage();
  await page.goto(service.url.replace('localhost', name));
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  assert.equal(await page.evaluate('isSecureContext'), false);
  await page.getByText('Sign-in needs https').waitFor();
  await inspect(page, 'sign-in-plain-http');

  const local = await context.newPage();
  await local.goto(service.url);
  await local.getByRole('heading', { name: 'Sign in' }).waitFor();
  assert.equal(await local.getByText('Sign-in needs https').count(), 0);
  await context.close();
});

test('Copy works without the clipboard of the browser, and says so where copying is refused', async () => {
  const { body: identity } = await service.call('POST', '/identities', { body: { value: 'copy.example' } });
  const context = await chromium.open({ permissions: ['clipboard-read'] });
  // As in a LAN. The page itself is on localhost, where the test can sign in and read the clipboard.
  await context.addInitScript('window.clipboard = navigator.clipboard; delete Navigator.prototype.clipboard');
  const page = await openPage(context, service, `identities/${identity.id}`);
  const copy = page.getByRole('button', { name: /^Copy the value of/ }).first();
  const [record] = JSON.parse(identity.dns_records);
  await copy.click();
  await page.getByText('Copied').waitFor();
  assert.equal(await page.evaluate('clipboard.readText()'), record.value);
  assert.equal(await page.evaluate('document.querySelectorAll("body > textarea").length'), 0);

  await page.evaluate('document.execCommand = () => false');
  await page.getByText('Copied').waitFor({ state: 'hidden' });
  await copy.click();
  await page.getByText('Select the text to copy it').waitFor();
  await context.close();
});
