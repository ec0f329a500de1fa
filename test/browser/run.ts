/**
 * `npm run test:browser [-- <files>]`: tests the dashboard as a person uses it, in Chromium against the whole service. Screenshots of
 * every view are in test/browser/seen afterwards. It installs nothing: without Chromium it says so, and fails.
 */
import { spawn } from 'node:child_process';
import { existsSync, globSync, mkdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { buildDashboard } from '../../scripts/dashboard.js';
import { chromiumPath, seenFolder } from './chromium.ts';

const root = path.resolve(import.meta.dirname, '../..');

if (!existsSync(chromiumPath)) {
  process.stderr.write(`${chromiumPath} is missing. On Debian: apt-get install chromium\n`);
  process.exit(1);
}
await buildDashboard();
const given = process.argv.slice(2);
const hasFiles = given.some((arg) => !arg.startsWith('-'));
if (!hasFiles) rmSync(seenFolder, { recursive: true, force: true });
mkdirSync(seenFolder, { recursive: true });
const files = hasFiles ? [] : globSync('test/browser/*.test.ts', { cwd: root }).sort();
// Two browsers at once already use every core of a small machine.
const child = spawn(process.execPath, ['test/run.ts', '--test-concurrency=2', ...given, ...files], {
  cwd: root,
  stdio: 'inherit',
});
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal));
child.on('exit', (code) => {
  process.exitCode = code ?? 1;
});
