/**
 * The Date field (RFC 5322 §3.3 and the old forms of §4.3) as an instant. The weekday is not compared: the date is
 * what counts. A zone that is missing, or made of letters that nobody knows, is UTC (§4.3: "-0000").
 */
import { stripComments } from './lexical.ts';

const form =
  /^(?:[a-z]+ ?,? ?)?(\d{1,2})[ -]([a-z]{3})[a-z]*[ -](\d{2,4}) (\d{1,2}) ?: ?(\d{2})(?: ?: ?(\d{2}))?(?: ?([+-])(\d{2})(\d{2})| ([a-z]+))?$/i;
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
/** Longer than any date with room for comments. */
const maxLength = 1000;

/** ISO 8601 in UTC with milliseconds, or null when it cannot be read. */
export function readDate(value: string): string | null {
  if (value.length > maxLength) return null;
  const found = form.exec(stripComments(value).replace(/\s+/g, ' ').trim());
  if (!found) return null;
  const [
    ,
    day,
    monthName = '',
    year = '',
    hour,
    minute,
    second = '0',
    sign,
    zoneHour,
    zoneMinute,
    zone = '',
  ] = found;
  const month = months.indexOf(monthName.toLowerCase());
  const date = new Date(0);
  date.setUTCFullYear(readYear(year), month, Number(day));
  // 30 February would have become a day in March.
  const isDay = month !== -1 && date.getUTCMonth() === month && date.getUTCDate() === Number(day);
  // 60 is a leap second.
  const isTime = Number(hour) < 24 && Number(minute) < 60 && Number(second) <= 60;
  if (!isDay || !isTime || Number(zoneMinute ?? 0) > 59) return null;
  const offset = sign
    ? Number(`${sign}1`) * (Number(zoneHour) * 60 + Number(zoneMinute))
    : (zoneHours.get(zone.toLowerCase()) ?? 0) * 60;
  date.setUTCHours(Number(hour), Number(minute) - offset, Number(second));
  const text = date.toISOString();
  return /^\d{4}-/.test(text) ? text : null;
}

/** §4.3: two digits are 1950 to 2049, three count from 1900. */
function readYear(digits: string): number {
  const year = Number(digits);
  if (digits.length === 2) return year < 50 ? 2000 + year : 1900 + year;
  return digits.length === 3 ? 1900 + year : year;
}
