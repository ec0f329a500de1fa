/**
 * Writes the pages that code can tell better than people: docs/errors.md and docs/config.md (`npm run docs`).
 * With --check it writes nothing and fails where a page and the code differ.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { renderConfigPage, renderErrorsPage } from './pages.ts';

const docs = path.join(import.meta.dirname, '../docs');
const pages = { 'errors.md': renderErrorsPage(), 'config.md': renderConfigPage() };

const stale = Object.entries(pages).filter(([name, text]) => read(name) !== text);
if (process.argv.includes('--check')) {
  for (const [name] of stale)
    process.stderr.write(`docs/${name} is not in step with the code. Run: npm run docs\n`);
  process.exitCode = stale.length > 0 ? 1 : 0;
} else {
  for (const [name, text] of stale) writeFileSync(path.join(docs, name), text);
  process.stdout.write(
    stale.length > 0 ? `Wrote ${stale.map(([name]) => name).join(', ')}.\n` : 'Nothing to do.\n',
  );
}

function read(name: string): string | null {
  try {
    return readFileSync(path.join(docs, name), 'utf8');
  } catch {
    return null;
  }
}
