/** The built dashboard (dashboard/dist), read once, and the headers under which browsers get it. */
import { createHash } from 'node:crypto';
import { existsSync, globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { gzipSync } from 'node:zlib';

const folder = path.join(import.meta.dirname, '../../dashboard/dist');

export interface DashboardFile {
  bytes: Buffer;
  gzipped: Buffer;
  type: string;
  cacheControl: string;
  etag: string;
}

const types: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.json': 'application/json; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.ico': 'image/x-icon',
  '.woff2': 'font/woff2',
};
const index = 'index.html';

/** By name, such as `index.html` and `assets/main-5KQZ2C4A.js`. Null: there is no built dashboard. */
export function readDashboard(
  basePath: string,
  from: string = folder,
): ReadonlyMap<string, DashboardFile> | null {
  if (!existsSync(path.join(from, index))) return null;
  const names = globSync('**/*.*', { cwd: from }).map((name) => name.replaceAll('\\', '/'));
  return new Map(names.map((name) => [name, describeFile(name, readFile(from, name, basePath))]));
}

function readFile(from: string, name: string, basePath: string): Buffer {
  const bytes = readFileSync(path.join(from, name));
  if (name !== index) return bytes;
  // The build does not know the base path.
  return Buffer.from(bytes.toString().replaceAll(/\b(href|src)="\/(?!\/)/g, `$1="${basePath}/`));
}

function describeFile(name: string, bytes: Buffer): DashboardFile {
  // A hash in the name: the file never changes.
  const isHashed = /[-.][0-9A-Za-z]{8,}\.\w+$/.test(name);
  const cacheControl =
    name === index ? 'no-store' : isHashed ? 'public, max-age=31536000, immutable' : 'no-cache';
  return {
    ...{ bytes, gzipped: gzipSync(bytes), cacheControl },
    type: types[path.extname(name)] ?? 'application/octet-stream',
    // Weak: the same for both encodings.
    etag: `W/"${createHash('sha256').update(bytes).digest('base64url')}"`,
  };
}

/**
 * The frame that shows a mail has no origin and no scripts (`sandbox`), but it inherits this policy. That is why styles may be inline
 * and images may come from anywhere; the document in the frame has a stricter policy of its own.
 */
const policy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data: blob: https: http:",
  "font-src 'self'",
  "connect-src 'self'",
  "frame-src 'self'",
  "form-action 'self'",
  "base-uri 'none'",
  "frame-ancestors 'none'",
].join('; ');

export const pageHeaders = {
  'content-security-policy': policy,
  // For browsers that do not know `frame-ancestors`.
  'x-frame-options': 'DENY',
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'same-origin',
  'cross-origin-opener-policy': 'same-origin',
};

/** What `/` is without the dashboard. */
export function writeShortPage(basePath: string): string {
  return `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Posthorn</title></head>
<body><h1>Posthorn</h1><p>This is the API. Its documentation is at <a href="${basePath}/docs">${basePath}/docs</a>.</p></body>
</html>
`;
}
