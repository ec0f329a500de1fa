/**
 * What users see of their mail: read before the upgrade with the SQL of the old schema, and after it by the API. The SQL here may
 * not follow later versions of the schema.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import type { Pool } from '../../../src/db/client.ts';
import { hash } from '../ledger.ts';
import type { Server } from '../server.ts';
import type { OldOwner } from './old-database.ts';
import { attachment } from './old-mail.ts';

/** By the path of the API: the number of items, and a hash over all of them. */
type Lists = Map<string, { count: number; md5: string }>;

interface SampleMessage {
  id: string;
  ownerId: string;
  sha256: string;
  event: { id: string; event: string; identityId: string; createdAt: string; data: EventData };
  /** With its attempts, as the API shows them. */
  delivery: { id: string };
}

interface EventData {
  message: { id: string; attachments: { url: string }[] };
  rawEmail?: string | null;
  rawEmailEncoding: BufferEncoding;
  rawEmailUrl?: string;
}

export interface Shown {
  lists: Lists;
  sample: SampleMessage[];
  /** `path of the webhook` and `event`: what must be POSTed after the upgrade. */
  waiting: Set<string>;
  /** The deliveries of those. */
  waitingIds: Set<string>;
}

export async function readOld(sql: Pool, owners: readonly OldOwner[], sampleSize: number): Promise<Shown> {
  const lists: Lists = new Map();
  const sample: SampleMessage[] = [];
  const [waiting, waitingIds] = [new Set<string>(), new Set<string>()];
  for (const owner of owners) {
    for (const table of ['messages', 'events'] as const) {
      const from = table === 'messages' ? sql`messages` : sql`events`;
      const [list] = await sql<{ count: number; md5: string }[]>`
        select count(*)::int as count, md5(string_agg(id || E'\\n', '' order by created_at desc, id desc)) as md5
        from ${from} where owner_id = ${owner.id}`;
      if (list) lists.set(`${owner.apiKey} /${table}`, list);
    }
    for (const webhook of owner.webhooks) {
      const [list] = await sql<{ count: number; md5: string }[]>`
        select count(*)::int as count, md5(string_agg(concat_ws(' ', id, event_id, event,
          case status when 'pending' then 'delivered' else status end,
          attempt_count + case status when 'pending' then 1 else 0 end,
          iso_time(created_at), iso_time(completed_at)) || E'\\n', '' order by created_at desc, id desc)) as md5
        from deliveries where webhook_id = ${webhook.id}`;
      if (list) lists.set(`${owner.apiKey} /webhooks/${webhook.id}/deliveries`, list);
      await sql<{ id: string; eventId: string }[]>`
        select id, event_id as "eventId" from deliveries where webhook_id = ${webhook.id} and status = 'pending'`.forEach(
        ({ id, eventId }) => {
          waitingIds.add(id);
          waiting.add(`${webhook.path} ${eventId}`);
        },
      );
    }
    sample.push(...(await readSample(sql, owner, sampleSize)));
  }
  return { lists, sample, waiting, waitingIds };
}

/** The first hundred have a large message, and two that share their bytes; the others are chosen by a hash. */
async function readSample(sql: Pool, owner: OldOwner, size: number): Promise<SampleMessage[]> {
  const ended = owner.webhooks.find(({ kind }) => kind === 'ended')?.id ?? '';
  const rows = await sql<(Omit<SampleMessage, 'event'> & { event: string })[]>`
    with chosen as (
      (select id from messages where owner_id = ${owner.id} order by created_at limit 5)
      union
      (select id from messages where owner_id = ${owner.id} order by created_at offset 98 limit 2)
      union
      (select id from messages where owner_id = ${owner.id} order by md5(id::text) limit ${size})
    )
    select messages.id, messages.owner_id as "ownerId", encode(sha256, 'hex') as sha256,
      json_build_object('id', events.id, 'event', events.event, 'identityId', events.identity_id,
        'createdAt', iso_time(events.created_at), 'data', events.data)::text as event,
      json_build_object('id', deliveries.id, 'eventId', deliveries.event_id, 'webhookId', webhook_id,
        'event', deliveries.event, 'status', status, 'attemptCount', attempt_count, 'nextAttemptAt', next_attempt_at,
        'createdAt', iso_time(deliveries.created_at), 'completedAt', iso_time(completed_at), 'attempts', (
          select json_agg(json_build_object('id', id, 'startedAt', iso_time(started_at), 'durationMs', duration_ms,
            'responseStatus', response_status, 'responseHeaders', response_headers, 'responseBody', response_body,
            'error', error, 'errorDetail', error_detail) order by id)
          from attempts where delivery_id = deliveries.id)) as delivery
    from chosen join messages using (id)
    join events on events.id = messages.event_id
    join deliveries on deliveries.id = delivery_id(events.id, ${ended})`;
  return rows.map((row) => ({ ...row, event: JSON.parse(row.event) }));
}

/** Sentences about sample messages that the API does not show as they were. */
export async function compareSample(
  server: Server,
  owners: readonly OldOwner[],
  { sample }: Shown,
): Promise<string[]> {
  const broken: string[] = [];
  const left = [...sample];
  async function compareRest(): Promise<void> {
    for (let wanted = left.pop(); wanted; wanted = left.pop()) {
      const { id, ownerId } = wanted;
      const authorization = `Bearer ${owners.find((owner) => owner.id === ownerId)?.apiKey}`;
      const get = (at: string) => server.call('GET', at, undefined, { authorization });
      await assertAsBefore(get, wanted).catch((error) =>
        broken.push(`message ${id} is not shown as before: ${error.message.slice(0, 600)}`),
      );
    }
  }
  await Promise.all(Array.from({ length: 8 }, compareRest));
  return broken;
}

async function assertAsBefore(get: (at: string) => Promise<Response>, wanted: SampleMessage): Promise<void> {
  const { id, sha256, event, delivery } = wanted;
  const message = (await readJson(await get(`/messages/${id}`))) as EventData['message'];
  const messageAsBefore = { ...withoutLinks(event.data.message), ...addedLater };
  assert.deepEqual(withoutLinks(message), messageAsBefore);

  const raw = await get(`/messages/${id}/raw`);
  assert.equal(hash(Buffer.from(await raw.arrayBuffer())), sha256, 'the raw bytes');
  const attached = await get(`/messages/${id}/attachments/0`);
  assert.equal(await attached.text(), attachment);

  const shown = (await readJson(await get(`/events/${event.id}`))) as SampleMessage['event'];
  const { rawEmail, rawEmailUrl, ...data } = shown.data;
  assert.deepEqual(
    { ...shown, data: { ...data, message: withoutLinks(data.message) } },
    { ...event, data: { ...event.data, message: messageAsBefore } },
  );
  assert.match(rawEmailUrl ?? '', new RegExp(`/messages/${id}/raw`));
  // A message of more than 1 MiB is only linked.
  if (rawEmail) assert.equal(hash(Buffer.from(rawEmail, data.rawEmailEncoding)), sha256, 'rawEmail');
  assert.deepEqual(await readJson(await get(`/deliveries/${delivery.id}`)), delivery);
}

/** Keys of a message that later versions show. */
const addedLater = { report: null, direction: 'incoming', sending: null };

/** Links change from day to day. */
function withoutLinks<Message extends EventData['message']>(message: Message): Message {
  return { ...message, attachments: message.attachments.map((one) => ({ ...one, url: '' })) };
}

async function readJson(response: Response): Promise<unknown> {
  const text = await response.text();
  assert.equal(response.status, 200, text.slice(0, 200));
  return JSON.parse(text);
}

interface ListItem {
  id: string;
  eventId?: string;
  event: string;
  status: string;
  attemptCount: number;
  createdAt: string;
  completedAt: string | null;
}

/** After everything that waited was delivered. Sentences about lists that are not as they were. */
export async function compareLists(server: Server, { lists, waitingIds }: Shown): Promise<string[]> {
  const broken: string[] = [];
  for (const [list, wanted] of lists) {
    const [apiKey = '', at = ''] = list.split(' ');
    const md5 = createHash('md5');
    let count = 0;
    for await (const item of listAll(server, apiKey, at)) {
      count += 1;
      md5.update(`${describe(item, waitingIds)}\n`);
    }
    if (count !== wanted.count) broken.push(`GET ${at} lists ${count} items of ${wanted.count}`);
    else if (count > 0 && md5.digest('hex') !== wanted.md5)
      broken.push(`GET ${at} lists other items, or in another order`);
  }
  return broken;
}

function describe(item: ListItem, waitingIds: ReadonlySet<string>): string {
  if (item.eventId === undefined) return item.id;
  const { id, eventId, event, status, attemptCount, createdAt, completedAt } = item;
  // Nobody knew before when a waiting delivery would end.
  const end = waitingIds.has(id) ? [] : [completedAt];
  return [id, eventId, event, status, attemptCount, createdAt, ...end].join(' ');
}

async function* listAll(server: Server, apiKey: string, path: string): AsyncGenerator<ListItem> {
  for (let at: string | undefined = `${path}?limit=200`; at; ) {
    const page: Response = await server.call('GET', at, undefined, { authorization: `Bearer ${apiKey}` });
    yield* (await readJson(page)) as ListItem[];
    [, at] = /^<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '') ?? [];
  }
}
