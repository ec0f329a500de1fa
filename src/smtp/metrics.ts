/** What the SMTP server counts. No value comes from a client: a client must not be able to create metric series. */
export interface SmtpMetrics {
  connections(open: number): void;
  connectionRefused(): void;
  /** Not called again for a recipient that the client repeats. */
  recipientAnswered(status: number): void;
  messageAnswered(status: number): void;
  certificateExpires(at: Date): void;
}
