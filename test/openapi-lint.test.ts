/** What Redocly says about the OpenAPI document: nothing. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { startTestService } from './harness.ts';
import { makeFolder, root, run } from './programs.ts';

const redocly = path.join(root, 'node_modules/@redocly/cli/bin/cli.js');
const quiet = { REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' };

test('Redocly finds neither an error nor a warning', async () => {
  const service = await startTestService({ POSTHORN_ADMIN_TOKEN: randomBytes(20).toString('hex') });
  const folder = makeFolder();
  after(() => folder.remove());
  const file = path.join(folder.path, 'openapi.json');
  writeFileSync(file, (await service.call('GET', '/openapi.json', { as: null })).text);
  const program = run(
    process.execPath,
    [redocly, 'lint', file, '--extends=recommended', '--format=json'],
    quiet,
  );
  await program.ended;
  const output = program.output();
  const { totals, problems } = JSON.parse(output.slice(output.indexOf('{'), output.lastIndexOf('}') + 1));
  assert.deepEqual([totals.errors, totals.warnings], [0, 0], JSON.stringify(problems, null, 1));
});
