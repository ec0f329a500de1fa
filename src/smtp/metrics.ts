/** What the SMTP server counts. No value comes from a client: a client must not be able to create metric series. */
import type { Metrics } from '../lib/metrics.ts';

export interface SmtpMetrics {
  connections(open: number): void;
  connectionRefused(): void;
  /** Not called again for a recipient that the client repeats. */
  recipientAnswered(status: number): void;
  messageAnswered(status: number): void;
  certificateExpires(at: Date): void;
}

export type ListenerName = 'mx' | 'submission' | 'submissions';

export function makeSmtpMetrics(metrics: Metrics, listener: ListenerName): SmtpMetrics {
  const { smtpConnections, smtpRefused, smtpRecipients, smtpMessages, certificateExpiry } = metrics;
  smtpConnections.set({ listener }, 0);
  smtpRefused.inc({ listener }, 0);
  return {
    connections: (open) => smtpConnections.set({ listener }, open),
    connectionRefused: () => smtpRefused.inc({ listener }),
    recipientAnswered: (status) => smtpRecipients.inc({ listener, status }),
    messageAnswered: (status) => smtpMessages.inc({ listener, status }),
    certificateExpires: (at) => certificateExpiry.set(at.getTime() / 1000),
  };
}
