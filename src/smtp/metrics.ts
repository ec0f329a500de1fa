/** What the MX door counts about itself, told as it happens. No value is one that a client chooses. */
export interface SmtpMetrics {
  connections(open: number): void;
  connectionRefused(): void;
  /** With the status of the reply; a recipient given twice is answered once. */
  recipientAnswered(status: number): void;
  messageAnswered(status: number): void;
}
