/** The settings that limit what an SMTP client may do, and the limits that follow from them. */
import { setting, wholeNumber } from './setting-readers.ts';

export const smtpLimitSettings = {
  POSTHORN_MAX_MESSAGE_BYTES: setting(
    wholeNumber(1024, 1 << 30),
    26_214_400,
    'Size of the largest message that Posthorn accepts. A message above 64 KiB, with a header above 32 KiB or with very much to decode, is examined by a thread beside the API and SMTP: one fewer than the machine has cores and at least 2, of which one user never has all. A message that takes a thread more than 30 s is accepted with its header alone. The JSON of `POST /messages` can have 1.4 times this size and 1 MiB more; above 128 KiB a thread parses it; more than 64 KiB of blanks outside of strings are refused.',
  ),
  POSTHORN_SMTP_MAX_RECIPIENTS: setting(
    wholeNumber(1, 10_000),
    100,
    'Most recipients of one received message. Further recipients are deferred: the sender retries them in another message.',
  ),
  POSTHORN_SMTP_MAX_LINE_BYTES: setting(
    wholeNumber(512, 65_536),
    2048,
    'Longest SMTP command line. The lines of a message have no limit.',
  ),
  POSTHORN_SMTP_MAX_ERRORS: setting(
    wholeNumber(1, 10_000),
    20,
    'Refused commands after which a connection is closed. An accepted message sets the count back to 0.',
  ),
  POSTHORN_SMTP_COMMAND_TIMEOUT: setting(
    wholeNumber(1, 3600),
    300,
    'Seconds within which a complete command must arrive.',
  ),
  POSTHORN_SMTP_DATA_TIMEOUT: setting(
    wholeNumber(1, 3600),
    180,
    'Most seconds for each 64 KiB of a message.',
  ),
  POSTHORN_SMTP_MESSAGE_TIMEOUT: setting(
    wholeNumber(1, 86_400),
    1800,
    'Seconds within which a complete message must arrive.',
  ),
  POSTHORN_SMTP_MAX_CONNECTIONS: setting(
    wholeNumber(1, 100_000),
    1000,
    'Most connections at the same time, for each SMTP listener of a process.',
  ),
  POSTHORN_SMTP_MAX_CONNECTIONS_PER_ADDRESS: setting(
    wholeNumber(1, 100_000),
    50,
    'Most of these connections from one IPv4 address or IPv6 /64 network.',
  ),
  POSTHORN_SMTP_MAX_BYTES_UNDER_WAY: setting(
    wholeNumber(1024, 2 ** 40),
    134_217_728,
    'Memory for messages that are being received, for each SMTP listener. What does not fit waits in temporary files of up to eight times this size; beyond that, large messages are deferred: the sender retries later.',
  ),
};

type Values = { [Name in keyof typeof smtpLimitSettings]: number };

export function readSmtpLimits(values: Values) {
  return {
    maxMessageBytes: values.POSTHORN_MAX_MESSAGE_BYTES,
    maxRecipients: values.POSTHORN_SMTP_MAX_RECIPIENTS,
    maxLineBytes: values.POSTHORN_SMTP_MAX_LINE_BYTES,
    maxErrors: values.POSTHORN_SMTP_MAX_ERRORS,
    commandTimeoutMs: values.POSTHORN_SMTP_COMMAND_TIMEOUT * 1000,
    dataTimeoutMs: values.POSTHORN_SMTP_DATA_TIMEOUT * 1000,
    dataPortionBytes: 65_536,
    slowAfterMs: 5000,
    messageTimeoutMs: values.POSTHORN_SMTP_MESSAGE_TIMEOUT * 1000,
    maxConnections: values.POSTHORN_SMTP_MAX_CONNECTIONS,
    maxConnectionsPerAddress: values.POSTHORN_SMTP_MAX_CONNECTIONS_PER_ADDRESS,
    maxBytesUnderWay: values.POSTHORN_SMTP_MAX_BYTES_UNDER_WAY,
    inMemoryBytes: 2 * 1024 * 1024,
    maxSpoolBytes: 8 * values.POSTHORN_SMTP_MAX_BYTES_UNDER_WAY,
  };
}
