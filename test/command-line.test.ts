/** Hints name a command that works where they are read: in a checkout through npm, in an installed package directly. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { chooseCommand } from '../src/lib/command-line.ts';
import { posthorn } from './programs.ts';

test('in a checkout a hint goes through npm, in the published package it names the installed command', () => {
  assert.equal(chooseCommand('/home/ada/posthorn/src/lib/command-line.ts'), 'npm run -s posthorn --');
  assert.equal(chooseCommand('/usr/lib/node_modules/posthorn/dist/lib/command-line.js'), 'posthorn');
});

test('the help is written for the command that was run', async () => {
  const help = await posthorn(['keys', 'create', '--help'], {});
  assert.match(help.output, /^Usage: npm run -s posthorn -- keys create \[options\]$/m);
  const wrong = await posthorn(['usres'], {});
  assert.match(wrong.output, /\(npm run -s posthorn -- --help lists the commands\)/);
});
