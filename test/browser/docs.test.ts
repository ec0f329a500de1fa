/** The API reference at `/docs`, in Chromium: everything comes from the service, and the policy of the page is never violated. */
import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { buildReference } from '../../scripts/reference.js';
import { startTestService, waitFor } from '../harness.ts';
import { desktop, seenFolder, startChromium } from './chromium.ts';

await buildReference();
const chromium = await startChromium();

for (const colorScheme of ['light', 'dark'] as const) {
  test(`the reference shows the guides and the operations, ${colorScheme}, also under a base path`, async () => {
    const service = await startTestService({ POSTHORN_BASE_PATH: '/mail' });
    const context = await chromium.open({ colorScheme });
    const page = await context.newPage();
    const requested: string[] = [];
    const faults: string[] = [];
    page.on('request', (request) => requested.push(request.url()));
    page.on('console', (message) => {
      if (message.type() === 'error') faults.push(message.text());
    });
    page.on('pageerror', (error) => faults.push(String(error)));
    await page.goto(`${service.url}/docs`);
    for (const name of ['Verifying signatures', 'Retries', 'Sending', 'Python'])
      await page.getByText(name).first().waitFor();
    await page.screenshot({ path: path.join(seenFolder, `docs-${colorScheme}.png`) });

    const inbound = page.getByRole('heading', { name: 'Deliver a message to your identities' });
    await page.goto(`${service.url}/docs#tag/messages/POST/inbound`);
    await inbound.waitFor();
    await inbound.scrollIntoViewIfNeeded();
    await page.getByText('message/rfc822').first().waitFor();
    await page.screenshot({ path: path.join(seenFolder, `docs-operation-${colorScheme}.png`) });

    // Links of the dashboard lead there.
    await page.goto('about:blank');
    await page.goto(`${service.url}/docs#description/verifying-signatures`);
    const verifying = page.getByRole('heading', { name: 'Verifying signatures' });
    await verifying.waitFor();
    const isSeen = async () => {
      const box = await verifying.boundingBox();
      return box !== null && box.y >= 0 && box.y < desktop.height;
    };
    await waitFor('the page to scroll', isSeen);

    assert.deepEqual(faults, []);
    const { origin } = new URL(service.url);
    assert.deepEqual(
      requested.filter((url) => !url.startsWith(`${origin}/mail/`) && !url.startsWith('data:')),
      [],
    );
    await context.close();
  });
}
