/**
 * Reads the Date field (RFC 5322 §3.3 and the old forms of §4.3). The weekday is ignored. A missing or unknown zone is UTC
 * (§4.3: "-0000").
 */
import { stripComments } from './lexical.ts';

const form =
  /^(?:[a-z]+ ?,? ?)?(?<day>\d{1,2})[ -](?<month>[a-z]{3})[a-z]*[ -](?<year>\d{2,4}) (?<hour>\d{1,2}) ?: ?(?<minute>\d{2})(?: ?: ?(?<second>\d{2}))?(?: ?(?<sign>[+-])(?<zoneHour>\d{2})(?<zoneMinute>\d{2})| (?<zone>[a-z]+))?$/i;
const months = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'];
const zoneHours = new Map([
  ['edt', -4],
  ['est', -5],
  ['cdt', -5],
  ['cst', -6],
  ['mdt', -6],
  ['mst', -7],
  ['pdt', -7],
  ['pst', -8],
]);
/** Far longer than any date with comments. */
const maxLength = 1000;

/** ISO 8601 in UTC with milliseconds. Null: the value is not a date. */
export function readDate(value: string): string | null {
  if (value.length > maxLength) return null;
  const found = form.exec(stripComments(value).replace(/\s+/g, ' ').trim())?.groups;
  if (!found) return null;
  const { day, hour, minute, second = 0, sign, zoneHour, zoneMinute = 0, zone = '' } = found;
  const month = months.indexOf(found.month?.toLowerCase() ?? '');
  const date = new Date(0);
  date.setUTCFullYear(readYear(found.year ?? ''), month, Number(day));
  // Date turns 30 February into a day in March.
  const isDay = month !== -1 && date.getUTCMonth() === month && date.getUTCDate() === Number(day);
  // 60 is a leap second.
  const isTime = Number(hour) < 24 && Number(minute) < 60 && Number(second) <= 60;
  if (!isDay || !isTime || Number(zoneMinute) > 59) return null;
  const offset = sign
    ? Number(`${sign}1`) * (Number(zoneHour) * 60 + Number(zoneMinute))
    : (zoneHours.get(zone.toLowerCase()) ?? 0) * 60;
  date.setUTCHours(Number(hour), Number(minute) - offset, Number(second));
  const text = date.toISOString();
  return /^\d{4}-/.test(text) ? text : null;
}

/** §4.3: two digits mean 1950 to 2049; three digits count from 1900. */
function readYear(digits: string): number {
  const year = Number(digits);
  if (digits.length === 2) return year < 50 ? 2000 + year : 1900 + year;
  return digits.length === 3 ? 1900 + year : year;
}
