/** `npm run check`: format and lint, types, import rules, dead code, docs in step. Runs all checks, and fails if one fails. */
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { findImportCycles, findImportFaults, readSources } from './imports.ts';

const root = path.dirname(import.meta.dirname);
const bin = (name: string) => path.join(root, 'node_modules/.bin', name);

const results = [
  run('format and lint', bin('biome'), ['check', '--error-on-warnings']),
  run('types', bin('tsc'), ['-p', '.']),
  run('types of the dashboard', bin('tsc'), ['-p', 'dashboard']),
  checkImports(),
  run('dead code', bin('knip'), ['--no-progress']),
  run('docs in step', process.execPath, ['scripts/docs.ts', '--check']),
];
process.exitCode = results.every(Boolean) ? 0 : 1;

function run(what: string, command: string, args: string[]): boolean {
  const started = performance.now();
  const { status } = spawnSync(command, args, { cwd: root, stdio: 'inherit' });
  return report(what, status === 0, started);
}

function checkImports(): boolean {
  const started = performance.now();
  const cycles = ['src', 'bench', 'test', 'scripts', 'dashboard'].flatMap((folder) =>
    findImportCycles(readSources(root, folder)).map((fault) => `${folder}/: ${fault}`),
  );
  const faults = [...findImportFaults(readSources(root)), ...cycles];
  for (const fault of faults) process.stderr.write(`${fault}\n`);
  return report('import rules', faults.length === 0, started);
}

function report(what: string, ok: boolean, started: number): boolean {
  process.stdout.write(`${ok ? '✓' : '✗'} ${what} (${Math.round(performance.now() - started)} ms)\n`);
  return ok;
}
