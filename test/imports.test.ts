import assert from 'node:assert/strict';
import path from 'node:path';
import { describe, test } from 'node:test';
import { findImportCycles, findImportFaults, listLoaded, readSources } from '../scripts/imports.ts';

const root = path.dirname(import.meta.dirname);
const only = (name: string, text: string) => findImportFaults([{ name, text }]);

test('the sources as they are go nowhere they may not', () => {
  const files = readSources(root);
  assert.ok(files.length > 30);
  assert.ok(files.some(({ name, text }) => name === 'http/routes/me.ts' && text.includes('import')));
  assert.deepEqual(findImportFaults(files), []);
});

test('the IMAP client is loaded in threads of its own, and not in the one that serves everyone', () => {
  const files = readSources(root);
  assert.ok(listLoaded(files, 'mailboxes/imap-thread.ts').has('imapflow'));
  const loaded = listLoaded(files, 'cli/posthorn.ts');
  assert.ok(loaded.has('fastify'), 'what the service loads was found');
  assert.ok(!loaded.has('imapflow'));
});

describe('wrong directions', () => {
  const wrong: [string, string, string][] = [
    ['lib/ids.ts', '../config.ts', 'lib may not import config'],
    ['config.ts', './db/client.ts', 'config may not import db'],
    ['problems.ts', './store/users.ts', 'problems may not import store'],
    ['db/client.ts', '../store/users.ts', 'db may not import store'],
    ['store/users.ts', '../http/app.ts', 'store may not import http'],
    ['store/users.ts', '../webhooks/url.ts', 'store may not import webhooks'],
    ['identities/lookup.ts', '../webhooks/url.ts', 'identities may not import webhooks'],
    ['webhooks/url.ts', '../identities/lookup.ts', 'webhooks may not import identities'],
    ['receiving/accept.ts', '../webhooks/url.ts', 'receiving may not import webhooks'],
    ['receiving/route.ts', '../sending/bounce-address.ts', 'receiving may not import sending'],
    ['sending/bounce-address.ts', '../receiving/route.ts', 'sending may not import receiving'],
    ['receiving/accept.ts', '../smtp/session.ts', 'receiving may not import smtp'],
    ['http/routes/me.ts', '../../smtp/session.ts', 'http may not import smtp'],
    ['smtp/session.ts', '../http/app.ts', 'smtp may not import http'],
    ['queue/worker.ts', '../store/deliveries.ts', 'queue may not import store'],
    ['http/app.ts', '../main.ts', 'http may not import main'],
    ['main.ts', './cli/posthorn.ts', 'main may not import cli'],
  ];
  for (const [name, target, fault] of wrong) {
    test(fault, () => {
      const found = only(name, `import { x } from '${target}';\n`);
      assert.equal(found.length, 1);
      assert.match(found[0] ?? '', new RegExp(`^src/${name} imports src/[\\w/.-]+: ${fault}\\.$`));
    });
  }
});

describe('right directions', () => {
  const right: [string, string][] = [
    ['http/routes/me.ts', '../../store/users.ts'],
    ['http/routes/me.ts', '../../lib/ids.ts'],
    ['http/routes/me.ts', '../access.ts'],
    ['http/routes/me.ts', './admin.ts'],
    ['store/users.ts', '../db/client.ts'],
    ['webhooks/deliver.ts', '../store/webhooks.ts'],
    ['webhooks/deliver.ts', '../queue/worker.ts'],
    ['main.ts', './http/app.ts'],
    ['cli/posthorn.ts', '../main.ts'],
    ['lib/loop.ts', './log.ts'],
    ['lib/ids.ts', 'node:crypto'],
  ];
  for (const [name, target] of right) {
    test(`${name} may import ${target}`, () => {
      assert.deepEqual(only(name, `import { x } from '${target}';\n`), []);
    });
  }
});

describe('every way to import is seen', () => {
  const ways: [string, string][] = [
    ['a value', `import { x } from '../http/app.ts';`],
    ['a type', `import type { X } from '../http/app.ts';`],
    ['everything', `import * as app from "../http/app.ts";`],
    ['for its effect', `import '../http/app.ts';`],
    ['over several lines', `import {\n  type X,\n  y,\n} from '../http/app.ts';`],
    ['handing on', `export { x } from '../http/app.ts';`],
    ['handing on everything', `export * from '../http/app.ts';`],
    ['later', `const app = await import('../http/app.ts');`],
    ['after another import', `import fs from 'node:fs';\nimport { x } from '../http/app.ts';`],
  ];
  for (const [what, text] of ways) {
    test(what, () => assert.equal(only('store/users.ts', `${text}\n`).length, 1));
  }
});

test('a folder that no rule knows is told, with where to add it', () => {
  assert.deepEqual(only('utils/strings.ts', ''), [
    'src/utils/strings.ts is in an unknown folder; add utils to the layers in scripts/imports.ts.',
  ]);
});

describe('cycles', () => {
  const cyclesOf = (imports: Record<string, string[]>) =>
    findImportCycles(
      Object.entries(imports).map(([name, targets]) => ({
        name,
        text: targets.map((target) => `import type { X } from '${target}';\n`).join(''),
      })),
    );

  for (const folder of ['src', 'bench', 'test', 'scripts']) {
    test(`there is none in ${folder}/`, () => {
      const files = readSources(root, folder);
      assert.ok(files.length > 5);
      assert.deepEqual(findImportCycles(files), []);
    });
  }

  test('two files, of which one names a type of the other', () => {
    assert.deepEqual(cyclesOf({ 'store/a.ts': ['./b.ts'], 'store/b.ts': ['./a.ts'] }), [
      'import cycle store/a.ts → store/b.ts → store/a.ts: move the shared code into a third file.',
    ]);
  });

  test('a cycle that begins further down names its own files alone', () => {
    const found = cyclesOf({
      'main.ts': ['./a/one.ts'],
      'a/one.ts': ['../b/two.ts'],
      'b/two.ts': ['./three.ts'],
      'b/three.ts': ['../a/one.ts'],
    });
    assert.equal(found.length, 1);
    assert.match(found[0] ?? '', /^import cycle a\/one\.ts → b\/two\.ts → b\/three\.ts → a\/one\.ts: /);
  });

  test('a file that imports itself', () => assert.equal(cyclesOf({ 'a.ts': ['./a.ts'] }).length, 1));

  test('two ways to one file are no cycle, nor is a package', () => {
    assert.deepEqual(
      cyclesOf({ 'a.ts': ['./b.ts', './c.ts'], 'b.ts': ['./c.ts', 'uuid'], 'c.ts': ['node:fs'] }),
      [],
    );
  });
});

describe('packages have one importer', () => {
  const importing = (target: string, ...names: string[]) =>
    findImportFaults(names.map((name) => ({ name, text: `import x from '${target}';\n` })));

  test('a second one is told, and both are named', () => {
    assert.deepEqual(importing('uuid', 'lib/ids.ts', 'store/users.ts'), [
      'uuid is imported by lib/ids.ts, store/users.ts; import it in one file only.',
    ]);
    assert.deepEqual(importing('uuid', 'lib/ids.ts'), []);
  });

  test('the driver belongs to the files that are named for it', () => {
    assert.deepEqual(importing('pg', 'db/client.ts', 'db/connection.ts'), []);
    assert.equal(importing('pg', 'db/client.ts', 'store/users.ts').length, 1);
    assert.equal(importing('pg', 'store/users.ts').length, 1);
  });

  test('what routes and schemas are written in is used wherever they are', () => {
    for (const target of ['typebox', 'fastify', '@fastify/type-provider-typebox']) {
      assert.deepEqual(importing(target, 'http/app.ts', 'http/access.ts', 'http/routes/me.ts'), []);
    }
  });
});
