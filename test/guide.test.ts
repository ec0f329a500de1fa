/** docs/guide.md, which `/docs` shows: its examples run. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { makeSecret } from '../src/webhooks/secret.ts';
import { signatureHeaders, signingKey } from '../src/webhooks/sign.ts';
import { startTestService } from './harness.ts';
import { makeFolder, root, run } from './programs.ts';

const guide = readFileSync(path.join(root, 'docs/guide.md'), 'utf8');
const readBlocks = (language: string) =>
  [...guide.matchAll(new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 'gs'))].map(([, code = '']) => code);

test('the shell examples work when pasted', async () => {
  const service = await startTestService();
  const { body: identity } = await service.call('POST', '/identities', {
    body: { value: 'sales@example.com' },
  });
  const settings = { BASE_URL: service.url, API_KEY: service.user.apiKey, IDENTITY: identity.id };
  const program = run('sh', ['-eu', '-c', readBlocks('sh').join('')], settings);
  assert.equal(await program.ended, 0, program.output());
  const [inbound, sent] = program
    .output()
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  assert.equal(inbound.messageIds.length, 1);
  assert.deepEqual(sent.envelope.rcptTo, ['ada@lovelace.example']);
});

/** For each language: the files beside the example, and the command that prints `true` or `false` for the arguments. */
interface Language {
  file: string;
  /** Runs first. */
  build?: string[];
  command: string[];
  files: Record<string, string>;
}
const programs: Record<string, Language> = {
  js: {
    file: 'verify.mjs',
    command: [process.execPath, 'main.mjs'],
    files: {
      'main.mjs': `import { verify } from './verify.mjs';
console.log(verify(...process.argv.slice(2, 6), Buffer.from(process.argv[6])));`,
    },
  },
  python: {
    file: 'verify.py',
    command: ['python3', 'main.py'],
    files: {
      'main.py': `import sys
from verify import verify
print(str(verify(*sys.argv[1:5], sys.argv[5].encode())).lower())`,
    },
  },
  go: {
    file: 'webhook/verify.go',
    build: ['go', 'build', '-o', 'verify', '.'],
    command: ['./verify'],
    files: {
      'go.mod': 'module example\n\ngo 1.20\n',
      'main.go': `package main
import ("example/webhook"; "os")
func main() {
	a := os.Args
	if webhook.Verify(a[1], a[2], a[3], a[4], []byte(a[5])) { print("true") } else { print("false") }
}`,
    },
  },
  php: {
    file: 'verify.php',
    command: ['php', 'main.php'],
    files: {
      'main.php': `<?php require 'verify.php'; echo json_encode(verify(...array_slice($argv, 1)));`,
    },
  },
  ruby: {
    file: 'verify.rb',
    command: ['ruby', 'main.rb'],
    files: { 'main.rb': `require_relative "verify"\nputs verify(*ARGV)` },
  },
};

describe('the example accepts a delivery and refuses what is not one:', () => {
  const folder = makeFolder();
  after(() => folder.remove());
  const secret = makeSecret();
  const now = Math.floor(Date.now() / 1000);
  const body = '{"event":"message.received","data":{"subject":"Zoë"}}';

  function sign(seconds: number, ...secrets: string[]): string[] {
    const headers = signatureHeaders('01a1dcf7', seconds, Buffer.from(body), secrets.map(signingKey));
    return [headers['webhook-id'], headers['webhook-timestamp'], headers['webhook-signature']];
  }

  for (const [language, { file, build, command, files }] of Object.entries(programs)) {
    const [name = '', ...args] = command;
    const runtime = build?.[0] ?? name;
    // `go` fails at an option that it does not know, but it runs.
    const isHere = spawnSync(runtime, ['--version']).error === undefined;
    test(language, { skip: isHere ? false : `${runtime} is not installed here` }, async () => {
      const cwd = path.join(folder.path, language);
      const [code = '', ...others] = readBlocks(language);
      assert.deepEqual(others, []);
      for (const [one, text] of Object.entries({ ...files, [file]: code })) {
        mkdirSync(path.dirname(path.join(cwd, one)), { recursive: true });
        writeFileSync(path.join(cwd, one), text);
      }
      if (build) assert.equal(await run(runtime, build.slice(1), {}, { cwd }).ended, 0);
      async function verify(...given: string[]): Promise<string> {
        const program = run(name, [...args, secret, ...given], {}, { cwd });
        await program.ended;
        return program.output().trim();
      }
      const good = sign(now, secret);
      assert.equal(await verify(...good, body), 'true');
      assert.equal(await verify(...sign(now, makeSecret(), secret), body), 'true');
      assert.equal(await verify(...good, `${body} `), 'false');
      assert.equal(await verify(...sign(now - 1000, secret), body), 'false');
      assert.equal(await verify(...sign(now, makeSecret()), body), 'false');
    });
  }
});
