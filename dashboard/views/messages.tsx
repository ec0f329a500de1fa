/** All messages, newest first and live. Only the rows near the visible part are in the page, however long the list is. */
import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { DeliveryItem, MessageSummary } from '../contract.ts';
import { useAfterEvents, useLive, useLoaded, usePage, useRepeated } from '../page.ts';
import { SelectField, TextField } from '../parts/form.tsx';
import { Badge, Empty, Link, Loading, ProblemNote, Title, When } from '../parts/show.tsx';
import type { ApiProblem } from '../request.ts';
import { navigate, useQuery } from '../route.ts';
import { askAgainMs, formatAddress, summarizeDeliveries } from '../words.ts';
import { useWindow } from './window.ts';

const pageSize = 100;
/** The API takes up to 50 messages in one question. */
const idsAtOnce = 50;

export function Messages() {
  const { api } = usePage();
  const direction = useSignal('');
  const identityId = useSignal('');
  const asked = useQuery('q');
  const rows = useSignal<MessageSummary[] | null>(null);
  const next = useSignal<string | null>(null);
  const isLoading = useRef(false);
  const filter = { direction: direction.value, identity_id: identityId.value, q: asked };
  const latest = useRef(filter);
  latest.current = filter;
  const identities = useLoaded(() => api.listIdentities());

  const first = useLoaded(async () => {
    const listed = await api.listMessages({ ...filter, limit: pageSize });
    // The answer to a filter that was changed meanwhile.
    if (isSame(filter, latest.current)) {
      rows.value = listed.items;
      next.value = listed.next;
    }
    return listed;
  }, Object.values(filter));

  const more = async () => {
    if (next.value === null || isLoading.current) return;
    isLoading.current = true;
    try {
      const listed = await api.listMessages({ ...filter, limit: 200, cursor: next.value });
      if (!isSame(filter, latest.current)) return;
      rows.value = [...(rows.value ?? []), ...listed.items];
      next.value = listed.next;
    } finally {
      isLoading.current = false;
    }
  };

  useLive((event) => {
    if (event.name === 'gap') first.reload();
    else if (!asked) rows.value = placeMessage(rows.value ?? [], event.data.message, filter);
  });
  // Only the service knows which messages have the words. A list that was scrolled is left alone.
  useAfterEvents(() => asked && (rows.value?.length ?? 0) <= pageSize && first.reload());

  const list = useRef<HTMLUListElement>(null);
  const shown = useWindow(list, rows.value?.length ?? 0);
  const visible = (rows.value ?? []).slice(shown.from, shown.to);
  const states = useDeliveryStates(visible.map(({ id }) => id));
  useEffect(() => {
    if (shown.to + 50 >= (rows.value?.length ?? 0)) more().catch(() => {});
  });

  /** The rows are those of an earlier search. */
  const isRefused = first.problem.value?.status === 400;
  const options = [
    ['', 'All identities'],
    ...(identities.value.value?.items ?? []).map(({ id, value }) => [id, value]),
  ];
  return (
    <>
      <Title
        actions={
          <Link to="write" class="button main">
            Write
          </Link>
        }
      >
        Messages
      </Title>
      <Search asked={asked} problem={first.problem.value} />
      <div class="filters">
        <SelectField
          label="Direction"
          name="direction"
          value={direction}
          options={[
            ['', 'Both'],
            ['incoming', 'Received'],
            ['outgoing', 'Sent'],
          ]}
        />
        <SelectField
          label="Identity"
          name="identity_id"
          value={identityId}
          options={options as [string, string][]}
        />
      </div>
      <ProblemNote problem={first.problem.value} fields={['q']} />
      {rows.value === null && !first.problem.value && <Loading />}
      {rows.value?.length === 0 && asked && !isRefused && <Empty>No message has all these words.</Empty>}
      {rows.value?.length === 0 && !asked && (
        <Empty>
          No message yet. Mail to one of your <Link to="identities">identities</Link> appears here by itself.
        </Empty>
      )}
      {rows.value !== null && rows.value.length > 0 && !isRefused && (
        <ul class="rows" ref={list} aria-label="Messages">
          <li class="space" aria-hidden="true" style={{ height: `calc(var(--row) * ${shown.from})` }} />
          {visible.map((message, n) => (
            <li
              key={message.id}
              aria-posinset={shown.from + n + 1}
              aria-setsize={next.value ? -1 : rows.value?.length}
            >
              <Row message={message} deliveries={states.get(message.id)} />
            </li>
          ))}
          <li
            class="space"
            aria-hidden="true"
            style={{ height: `calc(var(--row) * ${Math.max(0, rows.value.length - shown.to)})` }}
          />
        </ul>
      )}
    </>
  );
}

/** The words are in the address of the page, so that a search can be kept, sent to others and left with the back button. */
function Search({ asked, problem }: { asked: string; problem: ApiProblem | null }) {
  const typed = useSignal(asked);
  useEffect(() => {
    typed.value = asked;
  }, [asked]);
  const search = (event: Event) => {
    event.preventDefault();
    const q = typed.value.trim();
    navigate(q ? `messages?${new URLSearchParams({ q })}` : 'messages');
  };
  return (
    <search>
      <form class="search" onSubmit={search}>
        <TextField
          label="Search"
          name="q"
          type="search"
          value={typed}
          problem={problem}
          placeholder="Words of the subject, names or addresses"
          hint={asked && <Link to="messages">Show all messages</Link>}
        />
        <button type="submit">Search</button>
      </form>
    </search>
  );
}

interface Filter {
  direction: string;
  identity_id: string;
  q: string;
}

function isSame(a: Filter, b: Filter): boolean {
  return a.direction === b.direction && a.identity_id === b.identity_id && a.q === b.q;
}

function Row({ message, deliveries }: { message: MessageSummary; deliveries: DeliveryItem[] | undefined }) {
  const isOut = message.direction === 'outgoing';
  const who = isOut ? `To ${message.to.map(formatAddress).join(', ')}` : formatAddress(message.from);
  const state = deliveries && summarizeDeliveries(deliveries);
  return (
    <Link to={`messages/${message.id}`} class="row">
      <span class={`way ${isOut ? 'out' : 'in'}`}>
        <span aria-hidden="true">{isOut ? '↗' : '↙'}</span>
        <span class="hidden">{isOut ? 'Sent' : 'Received'}</span>
      </span>
      <span class="cut">
        <span class="line">
          <span class="who">{who}</span> <small class="cut">{message.identity.value}</small>
        </span>
        <span class="line">
          <span class="cut">{message.subject || '(no subject)'}</span>
        </span>
      </span>
      <span class="end">
        <When at={message.receivedAt} />
        {isOut ? (
          <Badge state={message.sending?.status ?? 'sent'} />
        ) : (
          state && <Badge state={state.text} tone={state.tone} />
        )}
      </span>
    </Link>
  );
}

/** The list with a message of an event: in its place, changed or added. */
function placeMessage(
  rows: readonly MessageSummary[],
  message: MessageSummary,
  { direction, identity_id }: Filter,
): MessageSummary[] {
  const isWanted =
    (!direction || message.direction === direction) && (!identity_id || message.identity.id === identity_id);
  if (!isWanted) return [...rows];
  if (rows.some(({ id }) => id === message.id))
    return rows.map((row) => (row.id === message.id ? message : row));
  // Ids grow with time, so their order is the order of the list.
  const at = rows.findIndex(({ id }) => id < message.id);
  return at === -1 ? [...rows, message] : rows.toSpliced(at, 0, message);
}

/** The deliveries of the visible messages. They are asked for again while one is pending. */
function useDeliveryStates(ids: readonly string[]): Map<string, DeliveryItem[]> {
  const { api } = usePage();
  const known = useSignal(new Map<string, DeliveryItem[]>());
  const unknown = ids.filter((id) => !known.value.has(id));
  const pendingOf = (id: string) => known.value.get(id)?.filter(({ status }) => status === 'pending') ?? [];
  // Unknown messages first: the others may wait for hours.
  const wanted = [...unknown, ...ids.filter((id) => pendingOf(id).length > 0)].slice(0, idsAtOnce);
  const isAsking = useRef(false);

  const ask = async () => {
    if (wanted.length === 0 || isAsking.current) return;
    isAsking.current = true;
    try {
      const { items } = await api.listDeliveries({ message_id: wanted.join(','), limit: 200 });
      const fresh = Map.groupBy(items, ({ messageId }) => messageId ?? '');
      const updated = new Map(known.value);
      for (const id of wanted) updated.set(id, fresh.get(id) ?? []);
      known.value = updated;
    } catch {
      // The list works without these states; the next question may have an answer.
    } finally {
      isAsking.current = false;
    }
  };
  useEffect(() => {
    ask();
  }, [unknown.join()]);
  useRepeated(unknown.length > 0 ? 1000 : askAgainMs(wanted.flatMap(pendingOf), new Date()), ask);
  return known.value;
}
