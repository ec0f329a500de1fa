/**
 * The HTML of a mail as a document for a sandboxed frame. A stranger wrote it. The frame has an opaque origin and no scripts
 * (`sandbox`), and this document has a policy of its own that loads nothing. What could still leave the frame is taken out here:
 * `base`, `meta` (refresh), forms, and links that are not to the web or to an address.
 */

/** Removed with their content. `form` keeps its content: newsletters wrap their text in one. */
const removed =
  'script, base, meta, link, iframe, frame, frameset, object, embed, applet, portal, noscript, template';

export const frameSandbox = 'allow-popups allow-popups-to-escape-sandbox';

export interface MailOptions {
  /** Remote images tell the sender that the mail was read, and when: they load only when the user asks. */
  remoteImages: boolean;
  /** Images that the mail brings along, by Content-ID, as `data:` URLs. */
  inline: ReadonlyMap<string, string>;
}

export function makeMailDocument(html: string, { remoteImages, inline }: MailOptions): string {
  // A parsed document that is not shown runs nothing and loads nothing.
  const mail = new DOMParser().parseFromString(html, 'text/html');
  for (const element of mail.querySelectorAll(removed)) element.remove();
  for (const form of mail.querySelectorAll('form')) form.replaceWith(...form.childNodes);
  for (const control of mail.querySelectorAll('[formaction]')) control.removeAttribute('formaction');
  for (const link of mail.querySelectorAll('a, area')) secureLink(link);
  for (const image of mail.querySelectorAll('img')) {
    const id = /^cid:(.*)$/i.exec(image.getAttribute('src') ?? '')?.[1];
    const found = id === undefined ? undefined : inline.get(decode(id));
    if (found !== undefined) image.setAttribute('src', found);
  }
  const policy = [
    "default-src 'none'",
    "style-src 'unsafe-inline'",
    `img-src data:${remoteImages ? ' https: http:' : ''}`,
    "form-action 'none'",
    "base-uri 'none'",
  ].join('; ');
  const head = `<meta http-equiv="Content-Security-Policy" content="${policy}"><meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light">`;
  const style =
    '<style>html{background:#fff;color:#211d16;font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}img{max-width:100%;height:auto}</style>';
  return `<!doctype html><html><head>${head}${style}${mail.head.innerHTML}</head>${mail.body.outerHTML}</html>`;
}

/** Whether the mail shows something that it does not bring along. */
export function hasRemoteImages(html: string): boolean {
  return /(?:src|srcset|background|poster)\s*=\s*["']?\s*(?:https?:)?\/\/|url\(\s*["']?\s*(?:https?:)?\/\//i.test(
    html,
  );
}

function secureLink(link: Element): void {
  link.removeAttribute('ping');
  const href = link.getAttribute('href');
  if (href === null) return;
  if (!/^\s*(https?:|mailto:)/i.test(href)) {
    link.removeAttribute('href');
    return;
  }
  link.setAttribute('target', '_blank');
  link.setAttribute('rel', 'noopener noreferrer');
}

function decode(id: string): string {
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}
