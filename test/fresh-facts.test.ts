import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FreshFacts } from '../src/sending/fresh-facts.ts';
import type { SendFacts } from '../src/store/send-queue.ts';

const factsOf = (id: string): SendFacts => ({
  ...{
    id,
    address: 'a@b.example',
    domain: 'c.example',
    isVerified: true,
    accountId: null,
    providerId: null,
    hasOwnWay: false,
    coauthors: null,
    from: null,
    isSuppressed: false,
  },
  ...{ isCancelling: false, eightBit: false, smtpUtf8: false, size: 1, raw: Buffer.from('x') },
  stored: { id, ownerId: '', rawId: null, size: 1, sha256: Buffer.alloc(32) },
});

test('facts serve one try, and only for a second: a recipient that waited longer is read again', () => {
  const facts = new FreshFacts();
  facts.keep([factsOf('a'), factsOf('b'), factsOf('c')], 0);
  assert.equal(facts.take('a', 1000)?.id, 'a');
  assert.equal(facts.take('a', 1000), undefined);
  assert.equal(facts.take('b', 1001), undefined);
  facts.keep([factsOf('c')], 5000);
  assert.equal(facts.take('c', 5500)?.id, 'c');
  assert.equal(facts.take('d', 0), undefined);
});
