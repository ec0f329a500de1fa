/** Every delivery of every webhook, newest first, with filters. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { DeliveryItem } from '../contract.ts';
import { useAfterEvents, useLoaded, usePage, useRepeated } from '../page.ts';
import { ActionButton, SelectField } from '../parts/form.tsx';
import { Empty, Loading, ProblemNote, Title } from '../parts/show.tsx';
import { askAgainMs } from '../words.ts';
import { DeliveryTable } from './delivery-table.tsx';

export function Deliveries() {
  return (
    <>
      <Title>Deliveries</Title>
      <DeliveryList />
    </>
  );
}

/** All deliveries, or those of one webhook. They are read again when `version` changes. */
export function DeliveryList({ webhookId, version = 0 }: { webhookId?: string; version?: number }) {
  const { api } = usePage();
  const status = useSignal('');
  const event = useSignal('');
  const chosen = useSignal(webhookId ?? '');
  const older = useSignal<{ items: DeliveryItem[]; next: string | null } | null>(null);
  const query = () => ({ status: status.value, event: event.value, webhook_id: webhookId ?? chosen.value });
  const webhooks = useLoaded(() => api.listWebhooks());
  const newest = useLoaded(() => {
    older.value = null;
    return api.listDeliveries(query());
  }, [status.value, event.value, chosen.value]);
  const refresh = async () => {
    // Older pages stay as they were read.
    if (older.value === null) await newest.reload();
  };
  useAfterEvents(refresh);
  useEffect(() => {
    if (version > 0) refresh();
  }, [version]);
  const deliveries = [...(newest.value.value?.items ?? []), ...(older.value?.items ?? [])];
  const pending = deliveries.filter((delivery) => delivery.status === 'pending');
  useRepeated(askAgainMs(pending, new Date()), refresh);
  const next = older.value ? older.value.next : (newest.value.value?.next ?? null);
  const loadMore = async () => {
    const listed = await api.listDeliveries({ ...query(), cursor: next ?? undefined });
    older.value = { items: [...(older.value?.items ?? []), ...listed.items], next: listed.next };
  };
  const known = webhooks.value.value?.items ?? [];
  return (
    <div class="stack">
      <div class="filters">
        <SelectField label="State" name="status" value={status} options={states} />
        <SelectField label="Event" name="event" value={event} options={events} />
        {webhookId === undefined && (
          <SelectField
            label="Webhook"
            name="webhook_id"
            value={chosen}
            options={[['', 'All webhooks'], ...known.map(({ id, url }) => [id, url] as const)]}
          />
        )}
      </div>
      <ProblemNote problem={newest.problem.value} />
      {!newest.value.value && !newest.problem.value && <Loading />}
      {newest.value.value && deliveries.length === 0 && (
        <Empty>No delivery. Each event makes one for every webhook that asked for it.</Empty>
      )}
      {deliveries.length > 0 && (
        <DeliveryTable
          deliveries={deliveries}
          webhooks={known}
          first={webhookId === undefined ? 'webhook' : 'message'}
          reload={refresh}
        />
      )}
      {next !== null && <ActionButton act={loadMore}>Show older</ActionButton>}
    </div>
  );
}

const states = [
  ['', 'All states'],
  ['pending', 'Pending'],
  ['delivered', 'Delivered'],
  ['failed', 'Failed'],
  ['cancelled', 'Cancelled'],
] as const;

const events = [
  ['', 'All events'],
  ['message.received', 'message.received'],
  ['message.sent', 'message.sent'],
  ['message.delivered', 'message.delivered'],
  ['message.bounced', 'message.bounced'],
  ['message.complained', 'message.complained'],
] as const;
