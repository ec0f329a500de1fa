/** The pages behind the link of a confirmation mail: plain HTML, which loads nothing and runs nothing. */
import { createHash } from 'node:crypto';
import { type HtmlValue, html } from './html.ts';
import { hornDrawing, palette } from './page-style.ts';

const style = `${palette}
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.6 var(--sans); }
main { max-width: 34rem; margin: 0 auto; padding: 4rem 1.5rem; }
svg { color: var(--brass); }
h1 { margin: 1rem 0; font-size: 1.625rem; line-height: 1.25; }
strong { overflow-wrap: anywhere; }
button {
  margin-top: .5rem; padding: .6rem 1.2rem; border: 0; border-radius: 8px; font: 600 1rem/1.5 var(--sans);
  background: var(--brass); color: var(--page); cursor: pointer;
}
:focus-visible { outline: 2px solid var(--brass); outline-offset: 3px; }
`;

const styleHash = createHash('sha256').update(style).digest('base64');

export const confirmationHeaders = {
  'content-security-policy': `default-src 'none'; style-src 'sha256-${styleHash}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'`,
  'x-frame-options': 'DENY',
  'x-content-type-options': 'nosniff',
  // The address of the page is the permission to confirm.
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
};

export function writeQuestion(address: string): string {
  return writePage(
    'Confirm this email address?',
    html`<p>Someone wants to connect <strong>${address}</strong> to an account at this service. The account can then send mail from
this address, and receives mail for it that arrives here.</p>
<form method="post"><button>Confirm the address</button></form>
<p>If you did not ask for this, close this page.</p>`,
  );
}

/** Also for an address that someone else has: the page tells nothing about other users. */
export function writeConfirmed(): string {
  return writePage(
    'The address is confirmed',
    html`<p>You can close this page. Whoever asked for this sees the status of the address in the account.</p>`,
  );
}

export function writeRefused(): string {
  return writePage(
    'The address cannot be confirmed now',
    html`<p>An address of this domain is verified through the domain. Ask the administrator of the domain.</p>`,
  );
}

export function writeUnknown(): string {
  return writePage(
    'This link does not work',
    html`<p>A link works once, and for 24 hours. To confirm an address, ask for a new link: in the account, verify the address
again.</p>`,
  );
}

function writePage(title: string, content: HtmlValue): string {
  return html`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>${title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex">
<style>${{ markup: style }}</style></head>
<body><main>${{ markup: hornDrawing }}<h1>${title}</h1>
${content}
</main></body></html>
`.markup;
}
