/**
 * The logger of the service: JSON lines in production, short readable lines otherwise.
 * Callers never log the headers, query or body of a request, so no secret reaches the log.
 */
import { type DestinationStream, type Logger, pino } from 'pino';

export type Log = Logger;

export const logLevels = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
export type LogLevel = (typeof logLevels)[number];

export function makeLog(options: { level: LogLevel; json: boolean; stream?: NodeJS.WritableStream }): Log {
  const stream = options.stream ?? process.stdout;
  const settings = { level: options.level, base: null, timestamp: pino.stdTimeFunctions.isoTime };
  return pino(settings, options.json ? stream : readableLines(stream));
}

/** `12:04:31 warn text key=value …` */
function readableLines(stream: NodeJS.WritableStream): DestinationStream {
  return {
    write(line: string) {
      const { level, time, msg, err, ...rest } = JSON.parse(line);
      const name = level === pino.levels.values.info ? '' : pino.levels.labels[level];
      const shown = level >= 50 ? name?.toUpperCase() : name;
      const parts = [String(time).slice(11, 19), shown, msg].filter(Boolean);
      for (const [key, value] of Object.entries(rest)) {
        parts.push(`${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`);
      }
      stream.write(`${parts.join(' ')}\n`);
      if (err?.stack) stream.write(`${err.stack}\n`);
    },
  };
}
