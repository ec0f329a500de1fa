/** The runner of the tests: a file that ends its process fails, and hides no other file. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { makeFolder, run } from './programs.ts';

const folder = makeFolder();
after(() => folder.remove());

const passing = write('passing.js', `test('passes', () => {});`);
const failing = write('failing.js', `test('fails', () => { throw new Error('on purpose'); });`);
const ending = write('ending.js', `test('ends its process', () => process.exit(0));`);

function write(name: string, code: string): string {
  const file = path.join(folder.path, name);
  writeFileSync(file, `const { test } = require('node:test');\n${code}\n`);
  return file;
}

/** With one process for all files. */
async function runThem(...files: string[]) {
  const runner = pathToFileURL(path.join(import.meta.dirname, 'run-files.ts'));
  const code = `import { runFiles } from '${runner}';
    process.exitCode = await runFiles(${JSON.stringify(files)}, { processes: 1, execArgv: [], env: process.env });`;
  const program = run(process.execPath, ['--input-type=module', '--eval', code], {});
  return { exitCode: await program.ended, output: program.output() };
}

test('files that pass', async () => {
  const { exitCode, output } = await runThem(passing, passing);
  assert.equal(exitCode, 0, output);
  assert.match(output, /tests 2\n.*suites 0\n.*pass 2\n.*fail 0\n/);
});

test('a file that fails', async () => {
  const { exitCode, output } = await runThem(failing, passing);
  assert.equal(exitCode, 1);
  assert.match(output, /on purpose/);
  assert.match(output, /pass 1\n.*fail 1\n/);
});

test('a file that ends its process, before another file and as the last one', async () => {
  const { exitCode, output } = await runThem(ending, passing, ending);
  assert.equal(exitCode, 1);
  assert.match(output, /The process of .*ending\.js ended too early: exit code 0\./);
  assert.match(output, /tests 3\n.*suites 0\n.*pass 1\n.*fail 2\n/);
});
