/**
 * `npm run docs`: generates docs/errors.md and docs/config.md from the code. With --check it writes nothing, and fails when a page
 * differs from the code.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { renderConfigPage, renderErrorsPage } from './pages.ts';

const docs = path.join(import.meta.dirname, '../docs');
const pages = { 'errors.md': renderErrorsPage(), 'config.md': renderConfigPage() };

const stale = Object.entries(pages).filter(([name, text]) => read(name) !== text);
if (process.argv.includes('--check')) {
  for (const [name] of stale) process.stderr.write(`docs/${name} differs from the code. Run: npm run docs\n`);
  process.exitCode = stale.length > 0 ? 1 : 0;
} else {
  for (const [name, text] of stale) writeFileSync(path.join(docs, name), text);
  process.stdout.write(
    stale.length > 0 ? `Wrote ${stale.map(([name]) => name).join(', ')}.\n` : 'The pages are up to date.\n',
  );
}

function read(name: string): string | null {
  try {
    return readFileSync(path.join(docs, name), 'utf8');
  } catch {
    return null;
  }
}
