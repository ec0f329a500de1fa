import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { makeSealer, readOrMakeKeyFile } from '../src/lib/secrets.ts';

const [older, newer] = [randomBytes(32), randomBytes(32)];
const sealer = makeSealer([older]);

describe('sealing', () => {
  for (const text of ['', 'whsec_abc', '💌 é \0', 'x'.repeat(100_000)]) {
    test(`${text.length} characters open as they were sealed`, () => {
      const sealed = sealer.seal(text, 'webhook 1');
      assert.equal(sealer.open(sealed, 'webhook 1'), text);
      assert.equal(sealer.open(new Uint8Array(sealed), 'webhook 1'), text);
      if (text !== '') assert.equal(sealed.includes(text), false);
    });
  }

  test('a part of a larger buffer opens as well', () => {
    const sealed = sealer.seal('secret', 'c');
    const larger = Buffer.concat([Buffer.alloc(7), sealed, Buffer.alloc(9)]);
    assert.equal(sealer.open(larger.subarray(7, 7 + sealed.length), 'c'), 'secret');
  });

  test('the same text seals differently every time', () => {
    const sealed = new Set(Array.from({ length: 50 }, () => sealer.seal('same', 'c').toString('hex')));
    assert.equal(sealed.size, 50);
  });

  test('another context does not open it', () => {
    const sealed = sealer.seal('secret', 'webhook 1');
    assert.throws(() => sealer.open(sealed, 'webhook 2'));
    assert.throws(() => sealer.open(sealed, ''));
  });

  test('a changed bit anywhere does not open', () => {
    const sealed = sealer.seal('secret', 'c');
    for (let at = 0; at < sealed.length; at++) {
      const changed = Buffer.from(sealed);
      changed[at] = (changed[at] ?? 0) ^ 1;
      assert.throws(() => sealer.open(changed, 'c'), `byte ${at}`);
    }
  });

  test('a cut or lengthened value does not open', () => {
    const sealed = sealer.seal('secret', 'c');
    for (let length = 0; length < sealed.length; length++) {
      assert.throws(() => sealer.open(sealed.subarray(0, length), 'c'), `${length} bytes`);
    }
    assert.throws(() => sealer.open(Buffer.concat([sealed, Buffer.alloc(1)]), 'c'));
  });
});

describe('rotation', () => {
  const rotated = makeSealer([newer, older]);

  test('what the old key sealed opens while the old key is still given', () => {
    assert.equal(rotated.open(sealer.seal('secret', 'c'), 'c'), 'secret');
  });

  test('the new key seals: without the old one it opens, with the old one alone it does not', () => {
    const sealed = rotated.seal('secret', 'c');
    assert.equal(makeSealer([newer]).open(sealed, 'c'), 'secret');
    assert.throws(() => sealer.open(sealed, 'c'));
  });

  test('a key that is missing is told by its id, and says which setting to mend', () => {
    const sealed = sealer.seal('secret', 'c');
    const id = sealed.toString('hex', 0, 4);
    assert.throws(() => makeSealer([newer]).open(sealed, 'c'), new RegExp(`key ${id}.*POSTHORN_SECRET_KEY`));
  });

  test('no key at all is a mistake', () => {
    assert.throws(() => makeSealer([]), /needs a key/);
  });
});

describe('the key file', () => {
  function makeFolder(t: TestContext): string {
    const folder = mkdtempSync(path.join(tmpdir(), 'posthorn-secrets-'));
    t.after(() => rmSync(folder, { recursive: true }));
    return folder;
  }

  test('is made once, for its owner alone, and read from then on', (t) => {
    const file = path.join(makeFolder(t), 'secret.key');
    const key = readOrMakeKeyFile(file);
    assert.equal(key.length, 32);
    assert.equal(statSync(file).mode & 0o777, 0o600);
    const text = readFileSync(file, 'utf8');
    assert.equal(text, `${key.toString('base64')}\n`);
    assert.deepEqual(readOrMakeKeyFile(file), key);
    assert.equal(readFileSync(file, 'utf8'), text);
  });

  test('one that the operator put there is taken as it is', (t) => {
    const file = path.join(makeFolder(t), 'secret.key');
    writeFileSync(file, newer.toString('base64'));
    assert.deepEqual(readOrMakeKeyFile(file), newer);
  });

  for (const [what, text] of [
    ['empty', ''],
    ['too short', 'c2hvcnQ='],
    ['no key', 'hello there'],
  ] as const) {
    test(`one that is ${what} is refused by name and left as it is`, (t) => {
      const file = path.join(makeFolder(t), 'secret.key');
      writeFileSync(file, text);
      assert.throws(() => readOrMakeKeyFile(file), new RegExp(`${file}.*32 bytes`));
      assert.equal(readFileSync(file, 'utf8'), text);
    });
  }

  test('of many that make it at the same moment, one does, and all get that key', async (t) => {
    const module = new URL('../src/lib/secrets.ts', import.meta.url).href;
    const folder = makeFolder(t);
    const rounds = 300;
    const racers = 2;
    // Each worker spins until all are there, so that they reach every file together.
    const source = `
      const { workerData: { module, folder, rounds, arrived, racers }, parentPort } = require('node:worker_threads');
      const counts = new Int32Array(arrived);
      import(module).then(({ readOrMakeKeyFile }) => {
        const keys = [];
        for (let round = 0; round < rounds; round++) {
          Atomics.add(counts, round, 1);
          while (Atomics.load(counts, round) < racers);
          try { keys.push(readOrMakeKeyFile(folder + '/' + round).toString('hex')); }
          catch (error) { keys.push(error.message); }
        }
        parentPort.postMessage(keys);
      });`;
    const arrived = new SharedArrayBuffer(4 * rounds);
    const results = await Promise.all(
      Array.from({ length: racers }, () => {
        const worker = new Worker(source, {
          eval: true,
          workerData: { module, folder, rounds, arrived, racers },
        });
        return new Promise<string[]>((resolve, reject) => {
          worker.once('message', resolve);
          worker.once('error', reject);
        });
      }),
    );
    assert.equal(readdirSync(folder).length, rounds, 'nothing is left beside the key files');
    for (let round = 0; round < rounds; round++) {
      const keys = new Set(results.map((keys) => keys[round]));
      assert.deepEqual([...keys], [readOrMakeKeyFile(path.join(folder, String(round))).toString('hex')]);
    }
  });
});
