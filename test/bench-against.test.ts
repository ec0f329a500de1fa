/** `--against <commit>` of the bench: the copy of the commit, and what is made of the figures of both. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readlinkSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { importFrom, openCheckout, readAgainst, thisCheckout } from '../bench/checkout.ts';
import { type Costs, listFigures } from '../bench/compare.ts';
import { withCleanup } from '../bench/scenario.ts';
import { makeSenderMix } from '../bench/sender-mix.ts';

const context = { log: () => {}, signal: new AbortController().signal };

test('--against is a server when it is a PostgreSQL URL, otherwise a commit', () => {
  const server = 'postgres://localhost/x';
  assert.deepEqual(readAgainst(server), { against: server, commit: null });
  assert.deepEqual(readAgainst('HEAD~3'), { against: null, commit: 'HEAD~3' });
  assert.deepEqual(readAgainst(undefined), { against: null, commit: null });
});

test('a commit is copied with its packages, and removed at the end', async (t) => {
  if (!existsSync(path.join(thisCheckout.folder, '.git'))) return t.skip('not a clone');
  const folder = await withCleanup(async (defer) => {
    const other = await openCheckout({ ...context, defer }, 'HEAD');
    assert.equal(other.name, git('rev-parse', '--short=10', 'HEAD'));
    assert.ok(existsSync(path.join(other.folder, 'src/cli/posthorn.ts')));
    if (git('status', '--porcelain', 'package-lock.json') === '')
      assert.equal(
        readlinkSync(path.join(other.folder, 'node_modules')),
        path.join(thisCheckout.folder, 'node_modules'),
      );
    const rows = await importFrom(other, 'bench/delivery-rows.ts');
    assert.equal(typeof rows.queueDeliveries, 'function');
    return other.folder;
  });
  assert.ok(!existsSync(folder));
});

test('a name that is no commit is refused', async (t) => {
  if (!existsSync(path.join(thisCheckout.folder, '.git'))) return t.skip('not a clone');
  const opening = withCleanup((defer) => openCheckout({ ...context, defer }, 'no-such-branch'));
  await assert.rejects(opening, /no commit with the name no-such-branch\. Give postgres:/);
});

test('the ratio is that of the two costs of one round', () => {
  const costs = (mainMs: number): Costs => ({
    smtp32: { mainMs, threadsMs: 0.25, postgresMs: 0.25, diskKb: 1, logKb: 1, perSecond: 1 },
  });
  assert.deepEqual(listFigures([costs(0.5), costs(2.5)], [costs(1.5), costs(1.5)]), {
    smtp32Ratio: [0.5, 1.5],
    smtp32Ms: [1, 3],
    smtp32OtherMs: [2, 2],
  });
});

test('the mail of many senders differs, and each sender has the records of its domain', async () => {
  const { messages, records } = await makeSenderMix((usual) => Math.ceil(usual / 100));
  assert.equal(new Set(messages.map(({ from }) => from)).size, 5);
  assert.equal(new Set(messages.map(({ wire }) => /^Subject: .*$/m.exec(wire)?.[0])).size, messages.length);
  for (const { from, wire } of messages) {
    const domain = from.slice(from.indexOf('@') + 1);
    assert.match(records[domain] ?? '', /^v=spf1 /);
    assert.match(records[`bench._domainkey.${domain}`] ?? '', /^v=DKIM1; /);
    assert.ok(wire.includes(`d=${domain};`) && wire.includes(`<${from}>`));
  }
});

function git(...args: string[]): string {
  return execFileSync('git', args, { cwd: thisCheckout.folder, encoding: 'utf8' }).trim();
}
