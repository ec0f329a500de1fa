/** Mail that lives elsewhere, as a person connects it: accounts, their mailboxes, providers, addresses confirmed by mail; and the search. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { Page } from 'playwright-core';
import { press, startConfirming } from '../confirming.ts';
import { startTestService, waitFor } from '../harness.ts';
import { startImapServer } from '../imap-server.ts';
import { isIdling, mailWith } from '../mailbox-service.ts';
import { startSink } from '../smtp-sink.ts';
import { inspect, openPage, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const chromium = await startChromium();
const service = await startTestService();
const { call } = service;
const sink = await startSink({ extensions: ['AUTH PLAIN LOGIN'] });

const side = (page: Page, name: 'Sending' | 'Receiving') => page.getByRole('group', { name });
/** Waits until the side has this host, port and user name. */
const hasValues = (page: Page, name: 'Sending' | 'Receiving', wanted: string[]) =>
  waitFor(wanted.join(), async () => String(await valuesOf(page, name)) === String(wanted));
const valuesOf = (page: Page, name: 'Sending' | 'Receiving') =>
  Promise.all(['Host', 'Port', 'User name'].map((label) => side(page, name).getByLabel(label).inputValue()));

test('an account: the servers of a known service, a wrong password in words, changed, verified, removed', async () => {
  const imap = await startImapServer('app-password');
  const context = await chromium.open();
  const page = await openPage(context, service, 'accounts');
  await page.getByRole('button', { name: 'Connect an account' }).click();
  const address = page.getByLabel('Address');
  await address.fill('ada@gmail.com');
  await hasValues(page, 'Sending', ['smtp.gmail.com', '465', 'ada@gmail.com']);
  await hasValues(page, 'Receiving', ['imap.gmail.com', '993', 'ada@gmail.com']);
  await side(page, 'Sending').getByText('myaccount.google.com/apppasswords').waitFor();
  await side(page, 'Sending').getByLabel('Login').selectOption('OAuth2');
  assert.equal(await page.getByLabel('Token URL').inputValue(), 'https://oauth2.googleapis.com/token');
  await inspect(page, 'account-new');
  await address.fill('ada@icloud.com');
  await hasValues(page, 'Receiving', ['imap.mail.me.com', '993', 'ada']);

  await address.fill('ada@own.example');
  await page.getByLabel('Service').selectOption('Another service');
  await side(page, 'Sending').getByLabel('Login').selectOption('Password or app password');
  await side(page, 'Sending').getByLabel('Host').fill('127.0.0.1');
  await side(page, 'Sending').getByLabel('Port').fill(String(sink.port));
  await side(page, 'Receiving').getByLabel('Host').fill('');
  await side(page, 'Sending').getByLabel('Password').fill('wrong');
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await side(page, 'Receiving').getByLabel('Host').and(page.locator('[aria-invalid=true]')).waitFor();
  await side(page, 'Receiving').getByLabel('Host').fill('127.0.0.1');
  await side(page, 'Receiving').getByLabel('Port').fill(String(imap.port));
  await page.getByRole('button', { name: 'Connect', exact: true }).click();

  await page.getByRole('heading', { name: 'ada@own.example' }).waitFor();
  await page.getByText('Sending through 127.0.0.1 works').waitFor();
  await page.getByText('Receiving from 127.0.0.1 does not work.').waitFor();
  await page.getByText('authentication_failed').waitFor();
  await page.getByText(/The server said:/).waitFor();
  await inspect(page, 'account-failing');
  await page.getByRole('link', { name: 'Home' }).click();
  const hand = page.getByRole('region', { name: 'What needs attention' });
  await hand.getByRole('link', { name: 'ada@own.example' }).click();

  await page.getByRole('button', { name: 'Change' }).click();
  await side(page, 'Sending').getByLabel('User name').fill('ada');
  await side(page, 'Receiving').getByLabel('Password').fill('app-password');
  await page.getByRole('button', { name: 'Save' }).click();
  const password = side(page, 'Sending').getByLabel('Password');
  await password.and(page.locator('[aria-invalid=true]')).waitFor();
  await side(page, 'Sending').getByText('Give "smtp/password" again').waitFor();
  await inspect(page, 'account-secret-required');
  await password.fill('app-password');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('button', { name: 'Change' }).waitFor();
  await page.getByRole('button', { name: 'Verify now' }).click();
  await page.getByText('Receiving from 127.0.0.1 works').waitFor();

  await page.getByLabel('Address or domain').fill('ada@own.example');
  await page.getByRole('button', { name: 'Use it for this identity' }).click();
  await page.getByRole('link', { name: 'ada@own.example' }).waitFor();
  await page.getByRole('button', { name: 'Remove' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Remove' }).click();
  await dialog.getByText('These identities refer to the account: ada@own.example').waitFor();
  await inspect(page, 'account-in-use');
  await dialog.getByRole('button', { name: 'Keep' }).click();
  await page.getByRole('button', { name: 'Disconnect' }).click();
  await page.getByRole('link', { name: 'ada@own.example' }).waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Remove' }).click();
  await dialog.getByRole('button', { name: 'Remove' }).click();
  await page.getByRole('heading', { name: 'Accounts' }).waitFor();
  assert.deepEqual((await call('GET', '/smtp-accounts')).body, []);
  await context.close();
});

test('mailboxes: an account is chosen for an address, new mail comes, older mail is imported with its progress', async () => {
  const imap = await startImapServer();
  for (let n = 0; n < 3; n += 1)
    imap.deliver('INBOX', mailWith(`Older mail ${n}`), new Date(Date.now() - 5 * 86_400_000));
  const server = { host: '127.0.0.1', username: 'bob', password: 'secret' };
  const body = {
    label: 'Mail of Bob',
    smtp: { ...server, port: sink.port },
    imap: { ...server, port: imap.port },
  };
  assert.equal((await call('POST', '/smtp-accounts', { body })).status, 201);
  const identity = (await call('POST', '/identities', { body: { value: 'bob@home.example' } })).body;
  const context = await chromium.open();
  const page = await openPage(context, service, `identities/${identity.id}`);
  await page.getByLabel('Account').selectOption('Mail of Bob');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('Saved.').waitFor();
  const inbox = page.getByRole('row', { name: /^Inbox/ });
  await inbox.getByText('All mail was read.').waitFor();
  await page
    .getByRole('row', { name: /^Trash/ })
    .getByText('listed only')
    .waitFor();
  await isIdling(imap);
  imap.deliver('INBOX', mailWith('New mail'));
  await waitFor('the new mail', async () => (await call('GET', '/messages')).body.length === 1);

  await page.getByRole('button', { name: 'Import older mail' }).click();
  await page.getByRole('button', { name: 'Import', exact: true }).click();
  await page.getByLabel('Mail since').and(page.locator('[aria-invalid=true]')).waitFor();
  const since = new Date(Date.now() - 10 * 86_400_000).toISOString().slice(0, 10);
  await page.getByLabel('Mail since').fill(since);
  // Recording waits for the lock, so that the progress is seen for certain.
  await service.sql.begin(async (sql) => {
    await sql`lock table messages in access exclusive mode`;
    await page.getByRole('button', { name: 'Import', exact: true }).click();
    await page.getByText('Importing older mail: 4 left to look at.').waitFor();
    await page.getByRole('progressbar').waitFor();
    await inspect(page, 'mailboxes-import');
  });
  await page.getByRole('progressbar').waitFor({ state: 'detached' });
  await inbox.getByText('All mail was read.').waitFor();
  await page.getByRole('link', { name: 'Messages' }).click();
  for (const subject of ['New mail', 'Older mail 0', 'Older mail 2'])
    await page.getByRole('link', { name: new RegExp(subject) }).waitFor();
  const events = await service.sql`select 1 from events where owner_id = ${service.user.userId}`;
  assert.equal(events.length, 1, 'older mail makes no event unless it is asked for');

  await page.goto(`${service.url}/app/identities/${identity.id}`);
  const before = imap.commands.length;
  await page.getByRole('button', { name: 'Check now' }).click();
  await isIdling(imap, imap.commands.filter((command) => command === 'IDLE').length + 1);
  assert.ok(imap.commands.length > before);
  await context.close();
});

test('providers: the credential fields of each kind, the URLs to copy, verify, remove', async () => {
  const context = await chromium.open();
  const page = await openPage(context, service, 'providers');
  await page.getByRole('button', { name: 'Connect a provider' }).click();
  for (const [title, names] of documentedCredentials()) {
    await page.getByLabel('Provider').selectOption(title);
    const fields = page.locator('[name^="credentials/"]');
    const shown = await fields.evaluateAll((inputs) =>
      inputs.map((input) => (input as unknown as { name: string }).name.slice('credentials/'.length)),
    );
    assert.deepEqual([...new Set(shown)].sort(), names.sort(), title);
  }
  await page.getByLabel('Provider').selectOption('Amazon SES');
  await page.getByLabel('Region').fill('the moon');
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await page.getByText('must be a region of AWS, such as us-east-1.').waitFor();
  await inspect(page, 'provider-problem');

  await page.getByLabel('Provider').selectOption('Postmark');
  await page.getByLabel('Name', { exact: true }).fill('Support mail');
  await page.getByLabel('Server token').fill('5a31b7fe-0000-4000-8000-000000000000');
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await page.getByRole('heading', { name: 'Support mail' }).waitFor();
  const [provider] = (await call('GET', '/providers')).body;
  await page.getByText(provider.inboundUrl, { exact: true }).waitFor();
  await page.getByText(provider.eventsUrl, { exact: true }).waitFor();
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  await page.getByRole('button', { name: 'Copy the URL for mail that comes in' }).click();
  await page.getByText('Copied').waitFor();
  assert.equal(await page.evaluate('navigator.clipboard.readText()'), provider.inboundUrl);
  await page.getByText('was not checked yet').waitFor();
  // The DNS of the tests has no such host.
  await page.getByRole('button', { name: 'Verify now' }).click();
  await page.getByText('Sending through Postmark does not work.').waitFor();
  await page.getByText('host_not_found').waitFor();
  await inspect(page, 'provider-failing');

  await page.getByRole('button', { name: 'Remove' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click();
  await page.getByRole('heading', { name: 'Providers' }).waitFor();
  assert.deepEqual((await call('GET', '/providers')).body, []);
  await context.close();
});

/** The names of the credentials in docs/providers.md, by the title of the section. */
function documentedCredentials(): [string, string[]][] {
  const text = readFileSync(path.join(import.meta.dirname, '../../docs/providers.md'), 'utf8');
  const sections = text.split(/^## /m).filter((section) => section.includes('| credential |'));
  return sections.map((section) => {
    const rows = section.split('\n').filter((line) => line.startsWith('| `'));
    // Without what is in brackets: the parts of a credential.
    const names = rows.flatMap(
      (row) => (row.split('|')[1] ?? '').replace(/\(.*\)/, '').match(/\w+(?=`)/g) ?? [],
    );
    return [section.slice(0, section.indexOf('\n')), names];
  });
}

test('an address is confirmed by the mail that the button sends', async () => {
  const confirming = await startConfirming();
  const value = confirming.newAddress();
  const identity = await confirming.add(value);
  const context = await chromium.open();
  const page = await openPage(context, confirming.service, `identities/${identity.id}`);
  await page.getByText('Nobody has confirmed it yet.').waitFor();
  await page.getByRole('button', { name: 'Confirm by mail' }).click();
  await page.getByText('Waiting for the link in the confirmation mail to be opened').waitFor();
  await inspect(page, 'confirmation-pending');
  for (let n = 0; n < 3; n += 1)
    await page.getByRole('button', { name: 'Send another confirmation mail' }).click();
  await page.getByRole('alert').getByText('Too many confirmation mails were requested.').waitFor();
  await confirming.sink.got(/^RCPT/i);
  const link = await confirming.linkTo(value);
  assert.equal((await press(link)).status, 200);
  await page.getByText('It receives and sends mail.').waitFor();
  assert.equal(await page.getByRole('button', { name: /confirm/i }).count(), 0);
  await context.close();
});

test('messages are searched, and the search is in the address of the page', async () => {
  const user = await service.makeUser();
  const value = 'find@shop.example';
  await call('POST', '/identities', { as: user, body: { value } });
  const context = await chromium.open();
  const page = await openPage(context, service, 'messages', user);
  const take = (subject: string) => receive(service, value, mail({ subject }), user);
  await take('The red invoice');
  await take('The blue parcel');
  const row = (name: RegExp) => page.getByRole('link', { name });
  await row(/blue parcel/).waitFor();
  await page.getByLabel('Search').fill('invoice Ada');
  await page.keyboard.press('Enter');
  await row(/blue parcel/).waitFor({ state: 'detached' });
  await row(/red invoice/).waitFor();
  assert.equal(new URL(page.url()).searchParams.get('q'), 'invoice Ada');
  await take('A second invoice');
  await row(/second invoice/).waitFor();
  await take('A second parcel');
  await page.reload();
  await row(/second invoice/).waitFor();
  assert.equal(await row(/parcel/).count(), 0);
  assert.equal(await page.getByLabel('Search').inputValue(), 'invoice Ada');
  await inspect(page, 'search');

  await page.getByLabel('Search').fill('…');
  await page.getByRole('button', { name: 'Search' }).click();
  await page.getByText('The query parameter q has no letter or digit.').waitFor();
  await page.getByLabel('Search').and(page.locator('[aria-invalid=true]')).waitFor();
  assert.equal(await row(/invoice/).count(), 0);
  await inspect(page, 'search-problem');
  await page.goBack();
  await row(/second invoice/).waitFor();
  await page.getByLabel('Search').fill('zebra');
  await page.keyboard.press('Enter');
  await page.getByText('No message has all these words.').waitFor();
  await page.getByRole('link', { name: 'Show all messages' }).click();
  await row(/second parcel/).waitFor();
  await context.close();
});
