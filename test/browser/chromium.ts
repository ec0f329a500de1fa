/** Chromium, a page that is signed in, and what every test of a view does: axe and a screenshot. */
import assert from 'node:assert/strict';
import path from 'node:path';
import { after } from 'node:test';
import axe from 'axe-core';
import { type BrowserContext, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import type { TestService, TestUser } from '../harness.ts';

export const chromiumPath = '/usr/bin/chromium';
export const seenFolder = path.join(import.meta.dirname, 'seen');

const args = [
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

export const desktop = { width: 1280, height: 800 };
export const phone = { width: 390, height: 780 };

/** A slow machine must not fail a test. */
const deadlineMs = 60_000;

export interface Chromium {
  open(options?: BrowserContextOptions): Promise<BrowserContext>;
}

/** With a new profile. Ends with the tests of the file. */
export async function startChromium(more: readonly string[] = []): Promise<Chromium> {
  const browser = await chromium.launch({
    executablePath: chromiumPath,
    headless: true,
    chromiumSandbox: false,
    args: [...args, ...more],
  });
  after(() => browser.close());
  return {
    async open(options = {}) {
      const context = await browser.newContext({ viewport: desktop, reducedMotion: 'reduce', ...options });
      context.setDefaultTimeout(deadlineMs);
      return context;
    },
  };
}

/** A page that is signed in with the API key of the user, and shows this path. The tests of signing in use the form instead. */
export async function openPage(
  context: BrowserContext,
  service: TestService,
  to = '',
  user: TestUser = service.user,
): Promise<Page> {
  const { apiKey } = user;
  const answer = await context.request.post(`${service.url}/sessions`, { data: { apiKey } });
  assert.equal(answer.status(), 201, await answer.text());
  const page = await context.newPage();
  await page.goto(`${service.url}/app/${to}`);
  return page;
}

interface AxeResult {
  violations: { id: string; help: string; nodes: { html: string; failureSummary: string }[] }[];
}

/** Fails on any violation that axe finds in this view and on a view that scrolls sideways, and keeps a picture of the view. */
export async function inspect(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: path.join(seenFolder, `${name}.png`), fullPage: true });
  const [width, shown] = await page.evaluate<[number, number]>(
    '[document.documentElement.scrollWidth, innerWidth]',
  );
  assert.ok(width <= shown, `${name}: ${width} pixels are wider than the window of ${shown}`);
  // As a debugger, because the policy of the page allows no other script.
  if (!(await page.evaluate('"axe" in window'))) await page.evaluate(axe.source);
  const { violations } = await page.evaluate<AxeResult>('axe.run(document, { iframes: false })');
  const found = violations.map(({ id, help, nodes }) => ({
    id,
    help,
    at: nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`),
  }));
  assert.deepEqual(found, [], name);
}
