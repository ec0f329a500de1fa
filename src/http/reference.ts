/** The page at `/docs`: Scalar's reference of `/openapi.json`, from this service alone. scripts/reference.js makes Scalar's script. */
import { createHash } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { once } from '../lib/once.ts';
import { hornDrawing, referenceStyle } from './reference-style.ts';

const folder = path.join(import.meta.dirname, '../../dist/reference');

/** Without these settings Scalar loads fonts, sends statistics, and shows buttons that lead to its own services. */
const withoutOtherServices = {
  withDefaultFonts: false,
  telemetry: false,
  hideClientButton: true,
  showDeveloperTools: 'never',
  agent: { disabled: true },
  mcp: { disabled: true },
};
const configuration = {
  ...withoutOtherServices,
  url: 'openapi.json',
  theme: 'none',
  hideDarkModeToggle: true,
  defaultHttpClient: { targetKey: 'shell', clientKey: 'curl' },
};
/** The theme follows the system, as in the dashboard. */
const start = `const dark = matchMedia('(prefers-color-scheme: dark)').matches;
Scalar.createApiReference('#reference', { ...${JSON.stringify(configuration)}, forceDarkModeState: dark ? 'dark' : 'light' });
`;
const hash = createHash('sha256').update(start).digest('hex').slice(0, 12);

export const startScript = { name: `start-${hash}.js`, bytes: Buffer.from(start) };

/** Scalar writes its style sheet into the page, hence 'unsafe-inline' for styles. */
export const referencePolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'unsafe-inline'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

export interface Reference {
  page: Buffer;
  /** Null: it is not built. */
  script: { name: string; readGzipped(): Promise<Buffer> } | null;
}

/** Reads the script at its first request only: 1.3 MB that most processes never need. */
export function makeReference(from: string = folder): Reference {
  const file = findScript(from);
  if (file === undefined) return { page: Buffer.from(writePage()), script: null };
  const name = file.slice(0, -'.gz'.length);
  const readGzipped = once(() => readFile(path.join(from, file)));
  return { page: Buffer.from(writePage(name)), script: { name, readGzipped } };
}

function findScript(from: string): string | undefined {
  try {
    return readdirSync(from).find((name) => name.endsWith('.js.gz'));
  } catch {
    return undefined;
  }
}

function writePage(script?: string): string {
  const scripts = [script, startScript.name].map((name) => `<script src="docs/${name}" defer></script>`);
  const document = '<a href="openapi.json">openapi.json</a>';
  const words =
    script === undefined
      ? `<p class="bare">The reference is not built: run <code>npm run build</code> and start again. ${document} has all of it.</p>`
      : `<noscript><p class="bare">The reference needs JavaScript. ${document} has all of it.</p></noscript>`;
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Posthorn API</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>${referenceStyle}</style>${script === undefined ? '' : scripts.join('')}</head>
<body class="light-mode"><header class="top"><a class="brand" href="./">${hornDrawing}Posthorn</a>${document}</header>
${words}<div id="reference"></div></body></html>
`;
}
