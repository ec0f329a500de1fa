/** The metrics of the service, for Prometheus. No label has a value that callers choose. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { readVersion } from './version.ts';

export type Metrics = ReturnType<typeof makeMetrics>;

/** Read whenever Prometheus reads the metrics. */
interface MetricSources {
  backlog(): Promise<number>;
  oldestPendingSeconds(): Promise<number>;
  failingSyncs(): Promise<number>;
}

const eventLoopMs = 100;
const outcomes = ['delivered', 'failed', 'cancelled'] as const;
const disabledReasons = ['gone', 'failing'] as const;

export function makeMetrics(sources?: MetricSources) {
  const registry = new Registry();
  const registers = [registry];
  // prom-client measures the delay of the event loop with a timer: at its default of 10 ms the timer alone takes a third of the
  // processor time of an idle process.
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: eventLoopMs });

  function counter<Label extends string = never>(name: string, help: string, labelNames: Label[] = []) {
    return new Counter({ name, help, labelNames, registers });
  }

  function histogram<Label extends string = never>(
    name: string,
    help: string,
    buckets: number[],
    labelNames: Label[] = [],
  ) {
    return new Histogram({ name, help, buckets, labelNames, registers });
  }

  /** With a source: NaN when reading the source fails, so that the other metrics stay readable. */
  function gauge(name: string, help: string, read?: () => Promise<number>) {
    if (!read) return new Gauge({ name, help, registers });
    return new Gauge({
      name,
      help,
      registers,
      async collect() {
        this.set(await read().catch(() => Number.NaN));
      },
    });
  }

  const ended = counter(
    'posthorn_deliveries_ended_total',
    'Deliveries that ended, by outcome: delivered, failed (given up) or cancelled.',
    ['outcome'],
  );
  const webhooksDisabled = counter(
    'posthorn_webhooks_disabled_total',
    'Webhooks that Posthorn disabled, by reason: gone (410) or failing.',
    ['reason'],
  );
  // Prometheus sees no increase in a series that begins with 1.
  for (const outcome of outcomes) ended.inc({ outcome }, 0);
  for (const reason of disabledReasons) webhooksDisabled.inc({ reason }, 0);
  const certificateExpiry = gauge(
    'posthorn_smtp_certificate_expiry_timestamp_seconds',
    'When the certificate of POSTHORN_TLS_CERT expires, as a Unix time. NaN without such a certificate.',
  );
  certificateExpiry.set(Number.NaN);
  new Gauge({
    name: 'posthorn_build_info',
    help: 'Always 1; the labels say which version runs.',
    labelNames: ['version', 'node'],
    registers,
  }).set({ version: readVersion(), node: process.version }, 1);

  return {
    registry,
    ended,
    webhooksDisabled,
    certificateExpiry,
    identitiesLost: counter(
      'posthorn_identities_lost_total',
      'Domain identities that lost their verification.',
    ),
    requestSeconds: histogram(
      'posthorn_http_request_seconds',
      'Time from the head of a request to the end of its response.',
      [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
      ['method', 'route', 'status'],
    ),
    tries: counter(
      'posthorn_delivery_tries_total',
      'Delivery attempts by outcome: delivered, or the error code.',
      ['outcome'],
    ),
    trySeconds: histogram(
      'posthorn_delivery_try_seconds',
      'Duration of one POST, from its start to the end of the response.',
      [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15],
    ),
    firstTrySeconds: histogram(
      'posthorn_delivery_first_try_delay_seconds',
      'Time from an event to the first attempt to deliver it.',
      [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60, 300, 3600],
    ),
    underWay: gauge('posthorn_delivery_tries_under_way', 'POSTs of this process that wait for a response.'),
    pausedWebhooks: gauge(
      'posthorn_delivery_parked_webhooks',
      'Webhooks that this process has paused, because every try fails.',
    ),
    sends: counter(
      'posthorn_send_tries_total',
      'Tries to send a message to a recipient, by outcome: sent, bounced, deferred or expired (given up).',
      ['outcome'],
    ),
    sendsUnderWay: gauge(
      'posthorn_send_tries_under_way',
      'Recipients to which this process is sending a message.',
    ),
    submitted: counter(
      'posthorn_submitted_messages_total',
      'Messages that were taken to be sent, by source.',
      ['source'],
    ),
    receivedMessages: counter(
      'posthorn_received_messages_total',
      'Received messages by source and by outcome: recorded, repeat (received before) or gone (the identity was deleted meanwhile).',
      ['source', 'outcome'],
    ),
    smtpConnections: new Gauge({
      name: 'posthorn_smtp_connections',
      help: 'Open SMTP connections of this process, by listener: mx, submission or submissions (TLS from the start).',
      labelNames: ['listener'],
      registers,
    }),
    smtpRefused: counter(
      'posthorn_smtp_connections_refused_total',
      'SMTP connections refused because of the connection limits, by listener.',
      ['listener'],
    ),
    smtpRecipients: counter('posthorn_smtp_recipients_total', 'SMTP recipients by listener and reply code.', [
      'listener',
      'status',
    ]),
    smtpMessages: counter('posthorn_smtp_messages_total', 'SMTP messages by listener and reply code.', [
      'listener',
      'status',
    ]),
    syncConnections: gauge(
      'posthorn_sync_connections',
      'Mailboxes elsewhere to which this process has a connection, or is opening one.',
    ),
    syncFailures: counter(
      'posthorn_sync_failures_total',
      'Failures to read a mailbox elsewhere, by code, such as authentication_failed. Three of these in a row stop the sync of a mailbox.',
      ['code'],
    ),
    syncsFailing: gauge(
      'posthorn_sync_failing',
      'Mailboxes elsewhere that cannot be read at the moment. The same in every process.',
      sources?.failingSyncs,
    ),
    spans: counter(
      'posthorn_trace_spans_total',
      'Trace spans by outcome: sent, or dropped because the collector was unreachable, slow or refused them.',
      ['outcome'],
    ),
    backlog: gauge(
      'posthorn_delivery_backlog',
      'Pending deliveries of enabled webhooks, counted up to 100,000. The same in every process.',
      sources?.backlog,
    ),
    oldestPendingSeconds: gauge(
      'posthorn_delivery_oldest_pending_seconds',
      'How long the oldest delivery that can be attempted now has been due. The same in every process.',
      sources?.oldestPendingSeconds,
    ),
  };
}
