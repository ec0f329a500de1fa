/** Deliveries as a table. A row opens to every try: what was sent and what came back, side by side. */
import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { Attempt, DeliveryItem, DeliveryWithAttempts, PosthornEvent, Webhook } from '../contract.ts';
import { useLoaded, usePage, useRepeated } from '../page.ts';
import { ActionButton } from '../parts/form.tsx';
import { Table } from '../parts/list.tsx';
import { Badge, Link, Loading, LongText, NextTry, ProblemNote, When } from '../parts/show.tsx';
import { useQuery } from '../route.ts';
import { askAgainMs, describeAttempt, formatMs } from '../words.ts';

interface TableProps {
  deliveries: readonly DeliveryItem[];
  webhooks: readonly Webhook[];
  /** What the first column names. */
  first: 'webhook' | 'message';
  reload(): Promise<void>;
}

/** The parameter `tries` of the address names the delivery that is open at first: a link can lead to its tries. */
export function DeliveryTable({ deliveries, webhooks, first, reload }: TableProps) {
  const linked = useQuery('tries');
  const open = useSignal(linked);
  const table = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (linked) table.current?.scrollIntoView();
  }, [linked]);
  const head = [
    first === 'webhook' ? 'Webhook' : 'Message',
    'Event',
    'State',
    'Last answer',
    'Tries',
    'Made',
    '',
  ];
  return (
    <div ref={table}>
      <Table head={head}>
        {deliveries.map((delivery) => (
          <DeliveryRow
            key={delivery.id}
            delivery={delivery}
            first={first}
            url={webhooks.find(({ id }) => id === delivery.webhookId)?.url ?? 'A deleted webhook'}
            isOpen={open.value === delivery.id}
            toggle={() => {
              open.value = open.value === delivery.id ? '' : delivery.id;
            }}
            reload={reload}
          />
        ))}
      </Table>
    </div>
  );
}

function DeliveryRow({
  delivery,
  first,
  url,
  isOpen,
  toggle,
  reload,
}: {
  delivery: DeliveryItem;
  first: TableProps['first'];
  url: string;
  isOpen: boolean;
  toggle(): void;
  reload(): Promise<void>;
}) {
  const { id, webhookId, messageId, subject, event, status, attemptCount, createdAt } = delivery;
  const name = subject ?? (messageId ? '(no subject)' : event);
  return (
    <>
      <tr class={isOpen ? 'open' : ''}>
        <td>
          {first === 'webhook' && <Link to={`webhooks/${webhookId}`}>{url}</Link>}
          {first === 'message' && (messageId ? <Link to={`messages/${messageId}`}>{name}</Link> : name)}
        </td>
        <td>{event}</td>
        <td>
          <Badge state={status} />
        </td>
        <td>{delivery.lastResponseStatus ?? delivery.lastError ?? '–'}</td>
        <td>{attemptCount}</td>
        <td>
          <When at={createdAt} />
        </td>
        <td>
          <div class="actions">
            <button type="button" aria-expanded={isOpen} onClick={toggle}>
              {isOpen ? 'Hide tries' : 'Tries'}
              <span class="hidden"> of {first === 'webhook' ? url : name}</span>
            </button>
          </div>
        </td>
      </tr>
      {isOpen && (
        <tr>
          <td class="wide" colSpan={7}>
            <Tries id={id} url={url} reload={reload} />
          </td>
        </tr>
      )}
    </>
  );
}

function Tries({ id, url, reload }: { id: string; url: string; reload(): Promise<void> }) {
  const { api } = usePage();
  const delivery = useLoaded(() => api.getDelivery(id), [id]);
  const found = delivery.value.value;
  const event = useLoaded(async () => found && (await api.getEvent(found.eventId)), [found?.eventId]);
  useRepeated(askAgainMs(found?.status === 'pending' ? [found] : [], new Date()), async () => {
    await delivery.reload();
    await reload();
  });
  if (!found) return delivery.problem.value ? <ProblemNote problem={delivery.problem.value} /> : <Loading />;
  const redeliver = async () => {
    await api.redeliver(id);
    await Promise.all([delivery.reload(), reload()]);
  };
  return (
    <div class="stack">
      <div class="actions">
        <Badge state={found.status} />
        {found.status === 'pending' && (
          <span class="soft">
            <NextTry at={found.nextAttemptAt} />
          </span>
        )}
        <ActionButton act={redeliver}>Redeliver</ActionButton>
      </div>
      {found.attempts.length === 0 && <p class="soft">No try yet.</p>}
      <ol class="tries">
        {found.attempts.map((attempt, n) => (
          <Try
            key={attempt.id}
            n={n + 1}
            attempt={attempt}
            request={formatRequest(found, attempt, url, event.value.value)}
          />
        ))}
      </ol>
    </div>
  );
}

function Try({ n, attempt, request }: { n: number; attempt: Attempt; request: string }) {
  return (
    <li class={attempt.error === null ? 'good' : 'bad'}>
      <p>
        <strong>Try {n}</strong>: {describeAttempt(attempt)}{' '}
        <span class="soft">
          <When at={attempt.startedAt} />, {formatMs(attempt.durationMs)}
        </span>
      </p>
      <Sides request={request} attempt={attempt} />
    </li>
  );
}

export function Sides({ request, attempt }: { request: string; attempt: Attempt }) {
  return (
    <div class="sides">
      <div>
        <p class="label">Request</p>
        <LongText what="Request" text={request} />
      </div>
      <div>
        <p class="label">Answer</p>
        <LongText what="Answer" text={formatAnswer(attempt)} />
      </div>
    </div>
  );
}

/** A long mail is not shown whole. */
const maxShownBody = 20_000;

/** The body is the event as it is stored. The signature is not stored. */
function formatRequest(
  { event, eventId }: DeliveryWithAttempts,
  { startedAt }: Attempt,
  url: string,
  found: PosthornEvent | null,
): string {
  const seconds = Math.floor(Date.parse(startedAt) / 1000);
  const headers = [
    'content-type: application/json',
    `webhook-id: ${eventId}`,
    `webhook-timestamp: ${seconds}`,
    'webhook-signature: v1,…',
  ];
  const body = found
    ? JSON.stringify({ event, data: found.data }, null, 2)
    : `{"event":"${event}","data":{…}}`;
  const shown = body.length > maxShownBody ? `${body.slice(0, maxShownBody)} …` : body;
  return [`POST ${url}`, ...headers, '', shown].join('\n');
}

function formatAnswer({
  responseStatus,
  responseHeaders,
  responseBody,
  errorDetail,
  error,
}: Attempt): string {
  if (responseStatus === null) return errorDetail ?? error ?? 'No answer.';
  const headers = Object.entries(responseHeaders ?? {}).map(([name, value]) => `${name}: ${value}`);
  return [String(responseStatus), ...headers, '', responseBody ?? ''].join('\n');
}
