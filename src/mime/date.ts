/**
 * Reads the Date field (RFC 5322 §3.3 and the old forms of §4.3), and what programs write instead: asctime, ISO 8601, twelve hours,
 * a zone such as "GMT+0200". The weekday is ignored. A missing or unknown zone is UTC (§4.3: "-0000").
 */
import { type OnCut, stripComments } from './lexical.ts';

const clock =
  /(?<hour>\d{1,2}) ?: ?(?<minute>\d{1,2})(?: ?: ?(?<second>\d{1,2})(?:\.\d+)?)?(?: ?(?<half>[ap]) ?m(?![a-z]))?/i;
const days = [
  /^(?:[a-z]+ ?)?(?<day>\d{1,2})[ -](?<month>[a-z]{3})[a-z]*[ -](?<year>\d{2,4})$/i,
  /^(?:[a-z]+ )?(?<month>[a-z]{3})[a-z]* (?<day>\d{1,2}) (?<year>\d{2,4})$/i,
  /^(?<year>\d{4})-(?<month>\d{2})-(?<day>\d{2})t?$/i,
];
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

/** ISO 8601 in UTC with milliseconds. Null: the value is not a date, or too long. */
export function readDate(value: string, onCut?: OnCut): string | null {
  if (value.length > maxLength) {
    onCut?.();
    return null;
  }
  // "Mon., 5 Feb. 2024" and "p.m." have dots after letters.
  const text = stripComments(value)
    .replace(/[,"]|(?<=[a-z])\./gi, ' ')
    .replace(/\s+/g, ' ');
  const time = clock.exec(text);
  const rest = time && readRest(text.slice(time.index + time[0].length));
  if (!time?.groups || !rest) return null;
  const date = readDay(`${text.slice(0, time.index).trim()} ${rest.year}`.trim());
  const minutes = readMinutes(time.groups);
  if (!date || minutes === null) return null;
  date.setUTCMinutes(minutes - rest.offset, Number(time.groups.second ?? 0));
  const iso = date.toISOString();
  return /^\d{4}-/.test(iso) ? iso : null;
}

/** After the time come the zone and, in asctime, the year. */
function readRest(text: string): { offset: number; year: string } | null {
  let offset: number | null = null;
  let year = '';
  const names: string[] = [];
  for (const word of text.trim().split(' ')) {
    const number = /^([a-z]*)([+-])(\d{1,2}):?(\d{2})?$/i.exec(word);
    const [, , sign, hours, minutes = '0'] = number ?? [];
    if (number && offset === null && Number(minutes) < 60)
      offset = Number(`${sign}1`) * (Number(hours) * 60 + Number(minutes));
    else if (/^\d{2,4}$/.test(word) && year === '') year = word;
    else if (/^[a-z]*$/i.test(word) && names.length < 2) names.push(word.toLowerCase());
    else return null;
  }
  return { offset: offset ?? (zoneHours.get(names[0] ?? '') ?? 0) * 60, year };
}

function readDay(text: string): Date | null {
  const found = days.map((form) => form.exec(text)?.groups).find((groups) => groups !== undefined);
  const named = found?.month?.toLowerCase() ?? '';
  const month = /^\d/.test(named) ? Number(named) - 1 : months.indexOf(named);
  const date = new Date(0);
  date.setUTCFullYear(readYear(found?.year ?? ''), month, Number(found?.day));
  // Date turns 30 February into a day in March.
  return date.getUTCMonth() === month && date.getUTCDate() === Number(found?.day) ? date : null;
}

/** Since midnight; null if there is no such time. */
function readMinutes({
  hour,
  minute,
  second = '0',
  half,
}: Record<string, string | undefined>): number | null {
  const written = Number(hour);
  const isAfternoon = half?.toLowerCase() === 'p';
  const hours = half && written <= 12 ? (written % 12) + (isAfternoon ? 12 : 0) : written;
  // 60 is a leap second.
  const isTime = hours < 24 && Number(minute) < 60 && Number(second) <= 60;
  return isTime ? hours * 60 + Number(minute) : null;
}

/** §4.3: two digits mean 1950 to 2049; three digits count from 1900. */
function readYear(digits: string): number {
  const year = Number(digits);
  if (digits.length === 2) return year < 50 ? 2000 + year : 1900 + year;
  return digits.length === 3 ? 1900 + year : year;
}
