/** What the service counts about itself, for Prometheus. No label takes a value that callers choose. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

export type Metrics = ReturnType<typeof makeMetrics>;

/** What is asked for whenever the metrics are read. */
interface MetricSources {
  backlog(): Promise<number>;
  oldestPendingSeconds(): Promise<number>;
}

const nothingKnown: MetricSources = {
  backlog: async () => Number.NaN,
  oldestPendingSeconds: async () => Number.NaN,
};

export function makeMetrics(sources = nothingKnown) {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  return {
    registry,
    requestSeconds: new Histogram({
      name: 'posthorn_http_request_seconds',
      help: 'Time from the head of a request to the end of its answer.',
      labelNames: ['method', 'route', 'status'],
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
      registers,
    }),
    tries: new Counter({
      name: 'posthorn_delivery_tries_total',
      help: 'Tries by what they came to: delivered, or the error.',
      labelNames: ['outcome'],
      registers,
    }),
    trySeconds: new Histogram({
      name: 'posthorn_delivery_try_seconds',
      help: 'Time of one POST, from its start to the end of its answer.',
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15],
      registers,
    }),
    firstTrySeconds: new Histogram({
      name: 'posthorn_delivery_first_try_delay_seconds',
      help: 'Time from an event to its first try.',
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60, 300, 3600],
      registers,
    }),
    underWay: new Gauge({
      name: 'posthorn_delivery_tries_under_way',
      help: 'POSTs of this process that wait for their answer.',
      registers,
    }),
    parkedWebhooks: new Gauge({
      name: 'posthorn_delivery_parked_webhooks',
      help: 'Webhooks whose breaker is open in this process.',
      registers,
    }),
    receivedMessages: new Counter({
      name: 'posthorn_received_messages_total',
      help: 'Messages by the way they came and by outcome: recorded, repeat (came before) or gone (the identity was deleted meanwhile).',
      labelNames: ['source', 'outcome'],
      registers,
    }),
    smtpConnections: new Gauge({
      name: 'posthorn_smtp_connections',
      help: 'SMTP connections open in this process.',
      registers,
    }),
    smtpRefused: new Counter({
      name: 'posthorn_smtp_connections_refused_total',
      help: 'SMTP connections refused for their number.',
      registers,
    }),
    smtpRecipients: new Counter({
      name: 'posthorn_smtp_recipients_total',
      help: 'Recipients by the status they were answered.',
      labelNames: ['status'],
      registers,
    }),
    smtpMessages: new Counter({
      name: 'posthorn_smtp_messages_total',
      help: 'Messages by the status they were answered.',
      labelNames: ['status'],
      registers,
    }),
    spans: new Counter({
      name: 'posthorn_trace_spans_total',
      help: 'Spans of traces by what became of them: sent, or dropped because the collector was away, slow or refused them.',
      labelNames: ['outcome'],
      registers,
    }),
    backlog: new Gauge({
      name: 'posthorn_delivery_backlog',
      help: 'Pending deliveries of enabled webhooks, counted up to 100,000. The same in every process.',
      registers,
      collect: whenRead(sources.backlog),
    }),
    oldestPendingSeconds: new Gauge({
      name: 'posthorn_delivery_oldest_pending_seconds',
      help: 'How long the oldest delivery has been due that may be tried now. The same in every process.',
      registers,
      collect: whenRead(sources.oldestPendingSeconds),
    }),
  };
}

/** A source that fails, as when the database is away, must not cost the other figures: then it is not a number. */
function whenRead(read: () => Promise<number>) {
  return async function collect(this: Gauge): Promise<void> {
    this.set(await read().catch(() => Number.NaN));
  };
}
