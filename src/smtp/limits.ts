/** How much one SMTP client may ask of us, and all of them together. Every bound of the MX door is here. */
export interface SmtpLimits {
  /** Announced as SIZE. A bigger message is read to its end without being kept, and refused; at twice this it is cut. */
  maxMessageBytes: number;
  maxRecipients: number;
  /** A command line. A longer one is refused; at 32 times this the connection is cut. Lines of a message have no bound. */
  maxLineBytes: number;
  /** Refusals (5xx) since the last accepted message, after which the connection is closed. */
  maxErrors: number;
  /** For a whole command line, so that a byte now and then gains nothing. RFC 5321 §4.5.3.2.7 asks for 5 minutes. */
  commandTimeoutMs: number;
  /** Between two pieces of a message. */
  dataTimeoutMs: number;
  /** For a message from DATA to its final dot. */
  messageTimeoutMs: number;
  maxConnections: number;
  /** Counted by IPv4 address and by IPv6 /64, which is what one customer has. */
  maxConnectionsPerAddress: number;
  /** Memory for the messages of all connections that are being read or accepted; beyond it: try again later. */
  maxBytesUnderWay: number;
}
