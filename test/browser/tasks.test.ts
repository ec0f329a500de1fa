/** What a person does in each view: reads figures, rows and messages, writes, filters, creates and removes. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, test } from 'node:test';
import type { Page } from 'playwright-core';
import { callUrl, startTestService, waitFor } from '../harness.ts';
import { answer, startReceiver } from '../receiver.ts';
import { inspect, openPage, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const chromium = await startChromium();
const receiver = await startReceiver();
after(() => receiver.close());
receiver.behaveAt('/gone', answer(410));
receiver.behaveAt('/broken', answer(500, {}, 'no space left'));
// One retry at once, so that a delivery fails within the test.
const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '0' });
const { call, sql } = service;

/** A user with this address, who is signed in. */
async function enter(address: string, to = '') {
  const user = await service.makeUser();
  const { body: identity } = await call('POST', '/identities', { as: user, body: { value: address } });
  const context = await chromium.open({ permissions: ['clipboard-read', 'clipboard-write'] });
  const open = (path: string) => openPage(context, service, path, user);
  return { user, identity, open, page: await open(to), close: () => context.close() };
}

const answerDialog = (page: Page, name: string) =>
  page.getByRole('dialog').getByRole('button', { name }).click();

test('home: the figures and the chart of the day, and what needs attention', async () => {
  const { user, page, close } = await enter('home@shop.example');
  for (const path of ['/ok', '/gone', '/broken']) await service.makeWebhook(receiver.url(path), {}, user);
  await receive(service, 'home@shop.example', mail({ subject: 'For three' }), user);
  await page.getByRole('img', { name: 'The last day: Received 1, Sent 0, Failed 2.' }).waitFor();
  const figures = await page.locator('.figures div').allInnerTexts();
  assert.deepEqual(
    figures.map((text) => text.split('\n').filter(Boolean)),
    [
      ['Received', '1'],
      ['Sent', '0'],
      ['Events delivered', '1'],
      ['Deliveries failed', '2'],
      ['Mail bounced', '0'],
    ],
  );
  const bars = await page.locator('.chart rect:not([height="0"])').count();
  assert.equal(bars, 2, 'a bar for what was received, and one for what failed');

  const hand = page.getByRole('region', { name: 'What needs attention' });
  await hand.getByText('For three was not delivered: the webhook answered 500.').waitFor();
  await hand.getByText(`${receiver.url('/gone')} answered 410 and was switched off.`).waitFor();
  await sql`update webhooks set enabled = false, disabled_reason = 'failing' where url = ${receiver.url('/broken')}`;
  await page.reload();
  await hand.getByText(`${receiver.url('/broken')} failed for days and was switched off.`).waitFor();
  await inspect(page, 'home-attention');

  await hand.getByRole('link', { name: receiver.url('/gone') }).click();
  await page.getByText('Its URL answered 410 (gone), so Posthorn switched it off.').waitFor();
  await page.getByRole('button', { name: 'Switch on' }).click();
  await page.getByRole('button', { name: 'Switch off' }).waitFor();
  await page.getByText('on', { exact: true }).waitFor();
  assert.equal(await page.getByText('switched it off').count(), 0);
  await close();
});

test('messages: newest first, each with direction, identity, subject, who, when, and its state', async () => {
  const address = 'rows@shop.example';
  const { user, identity, page, close } = await enter(address, 'messages');
  await service.makeWebhook(receiver.url('/ok'), {}, user);
  await receive(service, address, mail({ subject: 'The older' }), user);
  const body = { identityId: identity.id, to: 'bob@customer.example', subject: 'The newer', text: 'Hi.' };
  await call('POST', '/messages', { as: user, body });
  const rows = page.locator('.row');
  await rows.first().getByText('The newer').waitFor();
  // Each comes with its own event, and the older one may be shown later.
  await rows.nth(1).getByText('The older').waitFor();
  for (const state of await rows.all()) await state.getByText('delivered', { exact: true }).waitFor();
  const texts = await rows.allInnerTexts();
  const wanted = [
    ['Sent', 'To bob@customer.example', address, 'The newer'],
    ['Received', 'Ada', address, 'The older'],
  ];
  assert.equal(texts.length, wanted.length);
  for (const [n, parts] of wanted.entries())
    for (const part of parts) assert.ok(texts[n]?.includes(part), `"${part}" is not in row ${n}`);
  const times = await rows
    .locator('time')
    .evaluateAll((all) => all.map((time) => time.getAttribute('datetime')));
  const listed = (await call('GET', '/messages', { as: user })).body;
  assert.deepEqual(
    times,
    listed.map(({ receivedAt }: { receivedAt: string }) => receivedAt),
  );
  await close();
});

test('a message: text, headers, raw and attachments as they came, verdicts in words, and its end', async () => {
  const address = 'parts@shop.example';
  const { user, open, close } = await enter(address);
  const attached = '<script>alert(1)</script>';
  const raw = [
    ...['From: Ada <ada@customer.example>', `To: ${address}`, 'Subject: With a file', 'X-Own: a header'],
    ...['MIME-Version: 1.0', 'Content-Type: multipart/mixed; boundary=b', ''],
    ...['--b', 'Content-Type: text/plain', '', 'The text of it.'],
    ...[
      '--b',
      'Content-Type: text/html',
      'Content-Disposition: attachment; filename=page.html',
      '',
      attached,
    ],
    ...['--b--', ''],
  ].join('\r\n');
  const id = await receive(service, address, raw, user);
  const page = await open(`messages/${id}`);
  const save = async (name: string) => {
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name, exact: true }).click(),
    ]);
    return { name: download.suggestedFilename(), text: readFileSync(await download.path(), 'utf8') };
  };
  await page.getByText('The text of it.').waitFor();
  assert.deepEqual(await save('Download page.html'), { name: 'page.html', text: attached });
  await page.getByRole('tab', { name: 'Headers' }).click();
  await page.getByText('X-Own: a header').waitFor();
  await page.getByRole('tab', { name: 'Raw' }).click();
  await page.getByText('--b--').waitFor();
  assert.match((await save('Download')).text, /X-Own: a header\r\n.*--b--/s);
  await page.getByText('The message has no signature.').waitFor();
  await page.getByText('DNS does not say whether customer.example has a DMARC policy.').waitFor();
  await inspect(page, 'message-parts');

  await page.getByRole('button', { name: 'Delete' }).click();
  await answerDialog(page, 'Delete');
  await page.getByRole('heading', { name: 'Messages' }).waitFor();
  assert.equal((await call('GET', `/messages/${id}`, { as: user })).status, 404);
  await close();
});

test('a new mail is written: what the API refuses is said at its field', async () => {
  const { user, page, close } = await enter('writer@shop.example', 'messages');
  await page.getByRole('link', { name: 'Write' }).click();
  await page.getByLabel('To').fill('no address');
  await page.getByLabel('Subject').fill('A new mail');
  await page.getByRole('textbox', { name: 'Text' }).fill('Hello Bob.');
  await page.getByRole('button', { name: 'Send' }).click();
  await page.getByLabel('To').and(page.locator('[aria-invalid=true]')).waitFor();
  await page.getByText('See what is wrong at the fields in red.').waitFor();
  assert.equal(await page.getByText('JSON Pointer').count(), 0);
  await inspect(page, 'write-problem');
  await page.getByLabel('To').fill('bob@customer.example');
  await page.getByRole('button', { name: 'Send' }).click();
  await page.getByRole('heading', { name: 'A new mail' }).waitFor();
  await page
    .getByRole('row', { name: /bob@customer\.example/ })
    .getByText('delivered')
    .waitFor();
  const [sent] = (await call('GET', '/messages', { as: user })).body;
  assert.deepEqual(
    [sent.direction, sent.subject, sent.from.address],
    ['outgoing', 'A new mail', 'writer@shop.example'],
  );
  await close();
});

test('every DNS record has a button that copies its name and one that copies its value', async () => {
  const { user, open, close } = await enter('copy@shop.example');
  const { body: domain } = await call('POST', '/identities', { as: user, body: { value: 'copy.example' } });
  const page = await open(`identities/${domain.id}`);
  const records: { name: string; value: string }[] = JSON.parse(domain.dns_records);
  await page.getByRole('heading', { name: 'DNS records' }).waitFor();
  const rows = page.locator('.records tbody tr');
  assert.equal(await rows.count(), records.length);
  for (const [n, record] of records.entries())
    for (const part of ['name', 'value'] as const) {
      await rows
        .nth(n)
        .getByRole('button', { name: `the ${part} of` })
        .click();
      await waitFor(`${part} ${n} in the clipboard`, async () => {
        const copied = await page.evaluate('navigator.clipboard.readText()');
        return copied === record[part];
      });
    }
  await close();
});

test('a webhook: it is changed, its secret is replaced, its deliveries are filtered, a replay keeps to its time', async () => {
  const address = 'hooks@shop.example';
  const { user, open, close } = await enter(address);
  const webhook = await service.makeWebhook(receiver.url('/turn'), {}, user);
  const events = ['message.sent'];
  await service.makeWebhook(receiver.url('/other'), { events }, user);
  receiver.behaveAt('/turn', answer(500, {}, 'broken'));
  const failing = await receive(service, address, mail({ subject: 'Refused' }), user);
  await waitFor('the failed delivery', async () => {
    const { body } = await call('GET', `/deliveries?message_id=${failing}`, { as: user });
    return body[0]?.status === 'failed';
  });
  receiver.behaveAt('/turn', answer(200, {}, 'ok'));
  await receive(service, address, mail({ subject: 'Taken' }), user);
  const page = await open(`webhooks/${webhook.id}`);
  const refused = page.getByRole('link', { name: 'Refused' });
  const taken = page.getByRole('link', { name: 'Taken' });
  await Promise.all([refused.waitFor(), taken.waitFor()]);
  const state = page.getByLabel('State');
  await state.selectOption('Failed');
  await taken.waitFor({ state: 'detached' });
  await refused.waitFor();
  assert.equal(await taken.count(), 0);
  await state.selectOption('Delivered');
  await refused.waitFor({ state: 'detached' });
  await taken.waitFor();
  await state.selectOption('All states');
  await refused.waitFor();
  await page.getByRole('region', { name: 'Deliveries' }).getByLabel('Event').selectOption('message.sent');
  await page.getByText('No delivery.').waitFor();

  const day = (ago: number) => new Date(Date.now() - ago * 86_400_000).toISOString().slice(0, 16);
  await page.getByLabel('Which events').selectOption('All');
  await page.getByLabel('From').fill(day(3));
  await page.getByLabel('Until').fill(day(2));
  await page.getByRole('button', { name: 'Replay' }).click();
  await page.getByText('0 events read, 0 deliveries queued.').waitFor();
  await page.getByText('done', { exact: true }).waitFor();
  await page.getByLabel('Until').fill('');
  await page.getByRole('button', { name: 'Replay' }).click();
  await page.getByText('2 events read, 2 deliveries queued.').waitFor();

  await page.getByRole('button', { name: 'Change' }).click();
  await page.getByLabel('Description').fill('The help desk');
  await inspect(page, 'webhook-change');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('Gets message.received of all identities. The help desk').waitFor();
  const rowOf = async (name: string) => (await page.getByRole('button', { name }).boundingBox())?.y;
  assert.equal(await rowOf('Change'), await rowOf('Switch off'), 'Change stands alone on a row');

  await page.getByRole('button', { name: 'Show the secret' }).click();
  await page.getByText(webhook.secret).waitFor();
  await page.getByRole('button', { name: 'Rotate' }).click();
  await answerDialog(page, 'Rotate');
  await page.getByText(webhook.secret).waitFor({ state: 'detached' });
  const { secret } = (await call('GET', `/webhooks/${webhook.id}/secret`, { as: user })).body;
  assert.notEqual(secret, webhook.secret);
  await page.getByText(secret).waitFor();

  await page.getByRole('link', { name: 'Deliveries' }).click();
  await page.getByLabel('Webhook').selectOption(receiver.url('/other'));
  await page.getByText('No delivery.').waitFor();
  await page.getByLabel('Webhook').selectOption(receiver.url('/turn'));
  await page
    .getByRole('row', { name: receiver.url('/turn') })
    .first()
    .waitFor();
  await close();
});

test('an address is suppressed, and gets mail again', async () => {
  const { user, page, close } = await enter('stop@shop.example', 'suppressions');
  await page.getByRole('button', { name: 'Suppress an address' }).click();
  await page.getByLabel('Address').fill('no address');
  await page.getByRole('button', { name: 'Suppress', exact: true }).click();
  await page.getByLabel('Address').and(page.locator('[aria-invalid=true]')).waitFor();
  await page.getByLabel('Address').fill('angry@customer.example');
  await page.getByRole('button', { name: 'Suppress', exact: true }).click();
  const row = page.getByRole('row', { name: /angry@customer\.example/ });
  await row.getByText('manual').waitFor();
  assert.equal((await call('GET', '/suppressions', { as: user })).body.length, 1);
  await row.getByRole('button', { name: 'Remove' }).click();
  await answerDialog(page, 'Remove');
  await row.waitFor({ state: 'detached' });
  assert.deepEqual((await call('GET', '/suppressions', { as: user })).body, []);
  await close();
});

test('an API key is created, shown once, and revoked', async () => {
  const { page, close } = await enter('keys@shop.example', 'api-keys');
  await page.getByRole('button', { name: 'Create an API key' }).click();
  await page.getByLabel('Name').fill('ci');
  await page.getByLabel('Scope').selectOption('read');
  await page.getByRole('button', { name: 'Create the key' }).click();
  const shown = page.getByRole('group', { name: 'the new API key' });
  const key = (await shown.innerText()).trim();
  const me = () => callUrl('GET', `${service.url}/me`, { headers: { authorization: `Bearer ${key}` } });
  assert.equal((await me()).status, 200);
  const row = page.getByRole('row', { name: /^ci/ });
  await row.getByText('read', { exact: true }).waitFor();
  await page.reload();
  await row.waitFor();
  assert.equal(await shown.count(), 0);
  assert.ok(!(await page.content()).includes(key));
  await row.getByRole('button', { name: 'Revoke' }).click();
  await answerDialog(page, 'Revoke');
  await row.waitFor({ state: 'detached' });
  assert.equal((await me()).status, 401);
  await close();
});
