/** What leaves the service has one schema: the sample event is checked against the one that documents it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Ajv } from 'ajv';
import { eventTypes } from '../src/contract/event-types.ts';
import { MessageReceived } from '../src/contract/payload.ts';
import { sampleData, sampledEvents } from '../src/contract/sample.ts';

const validate = new Ajv({
  strict: true,
  allErrors: true,
  allowUnionTypes: true,
  formats: { uuid: /^[\da-f-]{36}$/, 'date-time': (text: string) => new Date(text).toISOString() === text },
}).compile(MessageReceived);

test('every supported event has a sample, and no other event', () => {
  const supported = eventTypes.filter(({ availability }) => availability === 'supported');
  assert.deepEqual(
    sampledEvents,
    supported.map(({ name }) => name),
  );
});

test('the sample event is what its schema says', () => {
  const data = sampleData();
  assert.ok(validate({ event: 'message.received', data }), JSON.stringify(validate.errors));
});

test('the schema refuses a sample that lacks a field or has one more, at every depth', () => {
  const walk = (value: unknown, at: string[] = []): string[][] => {
    if (typeof value !== 'object' || value === null) return [];
    const inner = Object.entries(value).flatMap(([key, one]) => walk(one, [...at, key]));
    return Array.isArray(value) ? inner : [at, ...inner];
  };
  const objects = walk(sampleData());
  assert.ok(objects.length > 10);
  for (const at of objects) {
    const change = (work: (object: Record<string, unknown>) => void) => {
      const data = sampleData();
      work(at.reduce((value, key) => value[key] as Record<string, unknown>, data as Record<string, unknown>));
      return validate({ event: 'message.received', data });
    };
    assert.equal(
      change((object) => Object.assign(object, { more: 1 })),
      false,
      `/${at.join('/')} is open`,
    );
    // The last key: the first of `data`, "test", may be left out.
    assert.equal(
      change((object) => delete object[Object.keys(object).at(-1) ?? '']),
      false,
      `/${at.join('/')} may lack a field`,
    );
  }
});
