/** How much the page loads, and how long its lists may be. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startTestService, waitFor } from '../harness.ts';
import { openPage, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const chromium = await startChromium();
const service = await startTestService();

test('the first load is at most 120 KB gzipped', async (t) => {
  const context = await chromium.open();
  const loaded = new Map<string, Promise<number>>();
  context.on('requestfinished', (request) => {
    const size = request.sizes().then(({ responseBodySize }) => responseBodySize);
    loaded.set(new URL(request.url()).pathname, size);
  });
  const page = await openPage(context, service);
  const shownMs = await page.getByRole('heading', { name: 'Three steps' }).evaluate(() => performance.now());
  await waitFor('the last request of the view', () => loaded.has('/stats'));
  const bytes = (await Promise.all(loaded.values())).reduce((sum, size) => sum + size, 0);
  t.diagnostic(`${bytes} bytes; the first view was shown ${Math.round(shownMs)} ms after the navigation`);
  assert.ok(bytes > 10_000 && bytes <= 120 * 1024, `${bytes} bytes`);
  await context.close();
});

const messages = 100_000;
/** To the end it is 500 pages of the API, which takes minutes on a busy machine. */
const scrolled = 4_000;

test('a list of 100,000 messages scrolls, with at most 200 rows in the page', async (t) => {
  const { sql } = service;
  await service.call('POST', '/identities', { body: { value: 'many@shop.example' } });
  const id = await receive(service, 'many@shop.example', mail({ subject: 'One of many' }));
  await sql`
    insert into messages
    select copied.* from messages, generate_series(1, ${messages - 1}) n,
      jsonb_populate_record(messages, jsonb_build_object(
        'id', gen_random_uuid(), 'repeat_key', null, 'created_at', created_at - n * interval '1 second')) copied
    where messages.id = ${id}`;
  await sql`analyze messages`;
  const context = await chromium.open();
  const page = await openPage(context, service, 'messages');
  await page.locator('.row').first().waitFor();
  const began = performance.now();
  const most = await page.evaluate<number>(scrollTo(scrolled));
  t.diagnostic(
    `at most ${most} rows at once; ${Math.round(performance.now() - began)} ms for ${scrolled} rows`,
  );
  assert.ok(most >= 50 && most <= 200, `${most} rows`);
  await page.keyboard.press('Home');
  await page.locator('[aria-posinset="1"]').waitFor();
  await context.close();
});

/** Scrolls to the end of what is loaded, again and again, until this row is in the page. The value is the largest number of rows that was in the page. */
function scrollTo(row: number): string {
  return `new Promise((resolve) => {
    let most = 0;
    const step = () => {
      const rows = [...document.querySelectorAll('.rows > li:not(.space)')];
      most = Math.max(most, rows.length);
      if (Number(rows.at(-1)?.getAttribute('aria-posinset')) >= ${row}) return resolve(most);
      scrollTo(0, document.documentElement.scrollHeight);
      requestAnimationFrame(step);
    };
    step();
  })`;
}
