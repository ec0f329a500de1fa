/** What one SMTP client may use, and all clients together. All limits of the SMTP server are settings in this list. */
export interface SmtpLimits {
  /** Announced as SIZE. A larger message is read to its end, not kept, and refused; at twice the size the connection is closed. */
  maxMessageBytes: number;
  maxRecipients: number;
  /** A longer command line is refused; at 32 times the length the connection is closed. Message lines have no limit. */
  maxLineBytes: number;
  /** Refusals (5xx) since the last accepted message, after which the connection is closed. */
  maxErrors: number;
  /** For a whole command line, so that sending single bytes gains no time. RFC 5321 §4.5.3.2.7 asks for 5 minutes. */
  commandTimeoutMs: number;
  /** For each `dataPortionBytes` of a message: the slowest rate that is allowed. */
  dataTimeoutMs: number;
  dataPortionBytes: number;
  /** When room is short, connections that need longer for `dataPortionBytes` are closed, the slowest first. */
  slowAfterMs: number;
  /** From DATA to the final dot. */
  messageTimeoutMs: number;
  maxConnections: number;
  /** Counted by IPv4 address and by IPv6 /64, because one customer usually has a whole /64. */
  maxConnectionsPerAddress: number;
  /** Memory for the messages of all connections: one half for those being read, the other for large ones being accepted. */
  maxBytesUnderWay: number;
  /** The rest of a message that is larger goes to a temporary file, earlier if memory is short. */
  inMemoryBytes: number;
  /** Temporary files of all connections. Above the limit, large mail is deferred. */
  maxSpoolBytes: number;
}
