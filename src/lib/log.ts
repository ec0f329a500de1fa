/**
 * The logger of the service: JSON lines for programs, short readable lines for a terminal.
 * Callers never log the headers, query or body of a request, so no secret reaches the log.
 */
import { type DestinationStream, type Logger, pino } from 'pino';

export type Log = Logger;

export const logLevels = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
export type LogLevel = (typeof logLevels)[number];
export const logFormats = ['pretty', 'json'] as const;
export type LogFormat = (typeof logFormats)[number];

/** Fields that contain mail addresses. PostgreSQL puts values of rows into the detail of an error, mail servers the recipient into a reply. */
const addressFields = ['address', 'mailFrom', 'recipients', 'reply', 'err.detail'];

export function makeLog(options: {
  level: LogLevel;
  json: boolean;
  stream?: DestinationStream;
  /** Fields of every JSON line. */
  base?: Record<string, string | number>;
  /** False: mail addresses are left out. */
  addresses?: boolean;
}): Log {
  const stream = options.stream ?? process.stdout;
  const settings = {
    level: options.level,
    base: options.json && options.base ? options.base : null,
    timestamp: makeTimestamp(),
    formatters: { level: (level: string) => ({ level }) },
    ...(options.addresses === false ? { redact: { paths: addressFields, remove: true } } : {}),
  };
  return pino(settings, options.json ? stream : readableLines(stream));
}

/** Formats the date once a second: pino's own function takes half of the time of a line. */
function makeTimestamp(): () => string {
  let second = Number.NaN;
  let upToSecond = '';
  return () => {
    const nowMs = Date.now();
    const current = Math.floor(nowMs / 1000);
    if (current !== second) {
      second = current;
      upToSecond = new Date(current * 1000).toISOString().slice(0, 20);
    }
    return `,"time":"${upToSecond}${String(nowMs - current * 1000).padStart(3, '0')}Z"`;
  };
}

/** `12:04:31 warn text key=value …` */
function readableLines(stream: DestinationStream): DestinationStream {
  return {
    write(line: string) {
      const { level, time, msg, err, ...rest } = JSON.parse(line);
      const isSerious = level === 'error' || level === 'fatal';
      const shown = level === 'info' ? '' : isSerious ? level.toUpperCase() : level;
      const parts = [String(time).slice(11, 19), shown, msg].filter(Boolean);
      for (const [key, value] of Object.entries(rest)) parts.push(`${key}=${showValue(value)}`);
      stream.write(`${parts.join(' ')}\n`);
      if (err?.stack) stream.write(`${err.stack}\n`);
    },
  };
}

/** In quotes when a value could be taken for another field or line. */
function showValue(value: unknown): string {
  return typeof value === 'string' && /^[^\s\p{C}"]+$/u.test(value) ? value : JSON.stringify(value);
}

/** Writes the lines of one turn of the event loop together, because each write is a system call. */
export function gatherLines(stream: DestinationStream) {
  let waiting = '';
  function flush(): void {
    const lines = waiting;
    waiting = '';
    if (lines !== '') stream.write(lines);
  }
  return {
    write(line: string): void {
      if (waiting === '') setImmediate(flush);
      waiting += line;
    },
    flush,
  };
}
