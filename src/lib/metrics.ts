/** What the service counts about itself, for Prometheus. No label takes a value that callers choose. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

export type Metrics = ReturnType<typeof makeMetrics>;

export function makeMetrics() {
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
    backlog: new Gauge({
      name: 'posthorn_delivery_backlog',
      help: 'Pending deliveries of enabled webhooks, counted up to 100,000.',
      registers,
    }),
    oldestPendingSeconds: new Gauge({
      name: 'posthorn_delivery_oldest_pending_seconds',
      help: 'Age of the oldest delivery that is ready and has not been tried.',
      registers,
    }),
  };
}
