/** `npm run screenshots`: the pictures of README.md and docs/dashboard.md, from demo data of a shop. */
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import type { Page } from 'playwright-core';
import { waitFor } from '../harness.ts';
import { startProving } from '../proving.ts';
import { answer, startReceiver } from '../receiver.ts';
import { openPage, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const folder = path.join(import.meta.dirname, '../../docs/images');
const chromium = await startChromium();
const receiver = await startReceiver();
after(() => receiver.close());
const { service, publish } = await startProving({ POSTHORN_ACCEPT_UNVERIFIED: 'true' });
const { sql, user } = service;

const customers = [
  ['Where is my parcel?', 'Amira Haddad <amira@haddad.example>'],
  ['Re: Your order 4812', 'Jonas Weber <jonas@weber.example>'],
  ['Invoice for October', 'Accounts <billing@paper-mill.example>'],
  ['Can I change the colour?', 'Priya Nair <priya@nair.example>'],
  ['Wholesale prices', 'Tomás Rivera <tomas@corner-shop.example>'],
  ['Thank you!', 'Elsie Brown <elsie@brown.example>'],
  ['The zip is broken', 'Kenji Mori <kenji@mori.example>'],
  ['Returns', 'Lucía Ferrer <lucia@ferrer.example>'],
] as const;

const hello = 'hello@bluebird.example';

const letter = `<div style="font-family: Georgia, serif; max-width: 34rem">
<p>Hello,</p>
<p>my parcel should have been here on Friday. The tracking page says <b>“out for delivery”</b> since then.
Could you have a look? The order number is <b>4812</b>.</p>
<p>Many thanks<br>Amira</p></div>`;

async function fill(): Promise<{ webhook: string; domain: string; message: string }> {
  const make = async (at: string, body: object) => (await service.call('POST', at, { body })).body;
  const domain = await make('/identities', { value: 'bluebird.example', incoming_domain: true });
  const identity = await make('/identities', { value: hello });
  await publish('bluebird.example', [domain], { mx: true });
  await make(`/identities/${domain.id}/verify`, {});
  const webhook = await service.makeWebhook(receiver.url('/mail'), { description: 'The help desk' });
  receiver.behaveAt('/mail', answer(503, {}, 'the help desk is being updated'));
  const message = await receive(service, hello, mailOf(customers[0], letter));
  await receiver.received(1);
  receiver.behaveAt('/mail', answer(200, {}, 'ok'));
  for (const customer of customers.slice(1)) await receive(service, hello, mailOf(customer));
  await make('/messages', {
    identityId: identity.id,
    to: 'amira@haddad.example',
    subject: 'Re: Where is my parcel?',
    text: 'Good morning Amira,\n\nwe have asked the carrier.',
  });
  const [delivery] = (await service.call('GET', `/deliveries?message_id=${message}`)).body;
  await service.call('POST', `/deliveries/${delivery.id}/redeliver`);
  await waitFor('all deliveries', async () => {
    const { body } = await service.call('GET', '/deliveries?status=pending');
    return body.length === 0;
  });
  receiver.behaveAt('/old', answer(500, {}, 'no space left on device'));
  await service.makeWebhook(receiver.url('/old'), { description: 'The archive' });
  await receive(service, hello, mailOf(['Opening hours', 'Noor Aziz <noor@aziz.example>']));
  await receiver.received(1, ({ url }) => url === '/old');
  await spread();
  return { webhook: webhook.id, domain: domain.id, message };
}

const mailOf = ([subject, from]: readonly [string, string], html?: string) =>
  mail({ subject, from, to: hello, ...(html ? { html } : {}) });

/** As if all this had happened during a day, in public. */
async function spread(): Promise<void> {
  await sql`
    update webhooks
    set url = case description when 'The archive' then 'https://archive.bluebird.example/' else 'https://help.bluebird.example/mail' end`;
  await sql`
    insert into traffic (owner_id, hour, backend, received, sent, delivered, deliveries_delivered)
    select ${user.userId}, date_trunc('hour', now()) - n * interval '1 hour', 0, busy, busy / 3, busy / 3, busy + busy / 3
    from generate_series(1, 23) n,
      lateral (select (26 + 22 * cos((extract(hour from now()) - n - 14) * pi() / 12) + 7 * sin(n * 5))::int as busy) wave`;
}

async function shoot(page: Page, name: string): Promise<void> {
  await page.evaluate('document.activeElement?.blur()');
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send('Page.captureScreenshot', { format: 'webp', quality: 82 });
  writeFileSync(path.join(folder, `${name}.webp`), Buffer.from(data, 'base64'));
}

test('pictures', async () => {
  const ids = await fill();
  mkdirSync(folder, { recursive: true });
  const look = { viewport: { width: 1180, height: 740 }, locale: 'en-GB', timezoneId: 'UTC' };
  const page = await openPage(await chromium.open(look), service);
  await page.getByRole('heading', { name: 'The last day' }).waitFor();
  await page.getByText('Live', { exact: true }).waitFor();
  await page.getByText('it answered 500').waitFor();
  await shoot(page, 'home');

  await page.goto(`${service.url}/app/messages/${ids.message}`);
  await page.locator('iframe').waitFor();
  await page.getByRole('button', { name: /^Tries of/ }).waitFor();
  await shoot(page, 'message');

  await page.goto(`${service.url}/app/identities/${ids.domain}`);
  await page.getByRole('heading', { name: 'DNS records' }).waitFor();
  await shoot(page, 'domain');

  const dark = await openPage(
    await chromium.open({ ...look, colorScheme: 'dark' }),
    service,
    `messages/${ids.message}`,
  );
  await dark.getByRole('button', { name: /^Tries of/ }).click();
  await dark.getByText('Try 2').waitFor();
  await dark.getByRole('heading', { name: 'Deliveries' }).scrollIntoViewIfNeeded();
  await dark.evaluate(`document.getElementById('deliveries').scrollIntoView()`);
  await shoot(dark, 'tries');
});
