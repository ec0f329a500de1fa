/** Dates as programs wrote them before and beside RFC 5322. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { readDate } from '../src/mime/date.ts';

describe('dates that a person can read', () => {
  const dates: [written: string, iso: string][] = [
    // Twelve hours.
    ['Mon, 5 Feb 2024 06:21:10 PM', '2024-02-05T18:21:10'],
    ['Mon, 5 Feb 2024 06:21:10 PM +0200', '2024-02-05T16:21:10'],
    ['Mon, 5 Feb 2024 06:21:10 am', '2024-02-05T06:21:10'],
    ['Mon, 5 Feb 2024 06:21 PM -0500', '2024-02-05T23:21:00'],
    ['Mon, 5 Feb 2024 6:21:10PM GMT', '2024-02-05T18:21:10'],
    ['Mon, 5 Feb 2024 12:00:00 AM', '2024-02-05T00:00:00'],
    ['Mon, 5 Feb 2024 12:00:00 PM', '2024-02-05T12:00:00'],
    ['Mon, 5 Feb 2024 18:21:10 PM', '2024-02-05T18:21:10'],
    ['Mon, 5 Feb 2024 06:21:10 p.m.', '2024-02-05T18:21:10'],
    // Zones.
    ['Mon, 5 Feb 2024 10:00:00 GMT+0200', '2024-02-05T08:00:00'],
    ['Mon, 5 Feb 2024 10:00:00 GMT-05:30', '2024-02-05T15:30:00'],
    ['Mon, 5 Feb 2024 10:00:00 UTC+2', '2024-02-05T08:00:00'],
    ['Mon, 5 Feb 2024 10:00:00 GMT +0200', '2024-02-05T08:00:00'],
    ['Mon, 5 Feb 2024 10:00:00 GMT+0200 (CEST)', '2024-02-05T08:00:00'],
    ['Mon, 5 Feb 2024 10:00:00 +02:00', '2024-02-05T08:00:00'],
    ['Mon, 5 Feb 2024 10:00:00+02:00', '2024-02-05T08:00:00'],
    ['Mon, 5 Feb 2024 10:00:00 -0330', '2024-02-05T13:30:00'],
    ['Mon, 5 Feb 2024 10:00:00 +0200 CEST', '2024-02-05T08:00:00'],
    ['Mon, 5 Feb 2024 10:00:00 EST -0500', '2024-02-05T15:00:00'],
    ['Mon, 5 Feb 2024 10:00:00 "GMT"', '2024-02-05T10:00:00'],
    // asctime, with and without a zone.
    ['Mon Feb  5 10:00:00 2024', '2024-02-05T10:00:00'],
    ['Mon Feb 05 10:00:00 2024', '2024-02-05T10:00:00'],
    ['Mon, Feb 5 10:00:00 2024', '2024-02-05T10:00:00'],
    ['Mon Feb  5 10:00:00 EST 2024', '2024-02-05T15:00:00'],
    ['Mon Feb  5 10:00:00 2024 +0100', '2024-02-05T09:00:00'],
    ['Mon Feb  5 10:00:00 +0100 2024', '2024-02-05T09:00:00'],
    ['Mon Feb  5 10:00 2024', '2024-02-05T10:00:00'],
    ['Mon Feb  5 10:00:00 PM 2024', '2024-02-05T22:00:00'],
    ['Feb 5, 2024 10:00:00', '2024-02-05T10:00:00'],
    ['Monday, February 5, 2024 10:00 PM', '2024-02-05T22:00:00'],
    ['Mon, Feb 5 2024 10:00:00 +0000', '2024-02-05T10:00:00'],
    ['Mon Feb 5 2024 10:00:00 GMT+0100 (CET)', '2024-02-05T09:00:00'],
    // Years.
    ['Mon, 5 Feb 24 10:00:00 +0000', '2024-02-05T10:00:00'],
    ['Mon, 5 Feb 96 10:00:00 +0000', '1996-02-05T10:00:00'],
    ['Mon, 5 Feb 104 10:00:00 +0000', '2004-02-05T10:00:00'],
    ['Mon, 5 Feb 099 10:00:00 +0000', '1999-02-05T10:00:00'],
    ['Mon, 5-Feb-96 10:00:00 GMT', '1996-02-05T10:00:00'],
    ['Mon Feb  5 10:00:00 96', '1996-02-05T10:00:00'],
    ['Mon Feb  5 10:00:00 104', '2004-02-05T10:00:00'],
    // Punctuation.
    ['Mon,5 Feb 2024 10:00:00 +0000', '2024-02-05T10:00:00'],
    ['Mon., 5 Feb. 2024 10:00:00 +0000', '2024-02-05T10:00:00'],
    ['Mon, 05 Feb 2024, 10:00:00 +0000', '2024-02-05T10:00:00'],
    ['5 Feb 2024 9:05:03 +0000', '2024-02-05T09:05:03'],
    ['Mon, 5 February 2024 10:00:00 Z', '2024-02-05T10:00:00'],
    ['2024-02-05 10:00:00', '2024-02-05T10:00:00'],
    ['2024-02-05T10:00:00Z', '2024-02-05T10:00:00'],
    ['2024-02-05T10:00:00.123+02:00', '2024-02-05T08:00:00'],
    ['2024-02-05 10:00:00 +0200', '2024-02-05T08:00:00'],
  ];
  for (const [written, iso] of dates) test(written, () => assert.equal(readDate(written), `${iso}.000Z`));
});

describe('not dates', () => {
  const values = [
    '',
    'now',
    'Mon',
    '5 Feb',
    '5 Feb 2024',
    '10:00:00',
    'Mon, 31 Feb 2024 10:00:00',
    'Mon, 5 Feb 2024 25:00:00',
    'Mon, 5 Feb 2024 10:60:00',
    'Mon, 5 Feb 2024 10:00:61',
    'Mon, 5 Foo 2024 10:00:00',
    'Mon, 5 Feb 2024 10:00:00 +0099',
    'Mon, 5 Feb 2024 10:00:00 words and words',
    // Day first, or month first?
    '5/2/2024 10:00:00',
    '05-02-2024 10:00:00',
  ];
  for (const written of values) test(JSON.stringify(written), () => assert.equal(readDate(written), null));
});

test('every date of RFC 5322 is read, in each of the forms', () => {
  const date = fc.date({ min: new Date('1970-01-01'), max: new Date('2049-12-31'), noInvalidDate: true });
  fc.assert(
    fc.property(date, (when) => {
      when.setUTCMilliseconds(0);
      const utc = when.toUTCString();
      const [weekday, day, month, year, time] = utc.replace(',', '').split(' ');
      for (const written of [
        utc,
        `${weekday} ${month} ${day} ${time} ${year}`,
        when.toISOString(),
        `${day} ${month} ${year?.slice(2)} ${time} +00:00`,
      ])
        assert.equal(readDate(written), when.toISOString(), written);
    }),
    { numRuns: 500 },
  );
});
