/**
 * `npm run test:peers [-- <files>]`: tests the whole service with programs of other projects. It installs nothing: it prints what
 * is missing, and fails. Programs that an aborted test has left are ended by their pid file.
 */
import { spawn } from 'node:child_process';
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { findWants, makePeerFolder } from './programs.ts';

const root = path.resolve(import.meta.dirname, '../..');

const wants = findWants();
if (wants) {
  process.stderr.write(`${wants}\n`);
  process.exit(1);
}

const folder = makePeerFolder('peers');
const given = process.argv.slice(2);
const hasFiles = given.some((arg) => !arg.startsWith('-'));
const files = hasFiles ? [] : globSync('test/peers/*.test.ts', { cwd: root }).sort();
const child = spawn(process.execPath, ['test/run.ts', ...given, ...files], {
  cwd: root,
  stdio: 'inherit',
  env: { ...process.env, TEST_PEERS_FOLDER: folder.path },
});
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal));
child.on('exit', (code) => {
  process.exitCode = code ?? 1;
  for (const file of globSync('**/*.pid', { cwd: folder.path })) end(path.join(folder.path, file));
  folder.remove();
});

function end(pidFile: string): void {
  // PostgreSQL's has further lines.
  const pid = Number.parseInt(readFileSync(pidFile, 'utf8'), 10);
  try {
    if (pid > 1) process.kill(pid);
  } catch {
    // The process has ended.
  }
}
