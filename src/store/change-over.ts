/**
 * The change-over of what older versions stored: the message moves from the data of its event to its own row, compressed, the raw
 * bytes are compressed too, and its words are noted for the search. In small batches, while the service runs; what is not changed yet is read as it is.
 * Guarantee: a batch and the position after it are one transaction, so the work goes on after a stop where it was.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import { compress, packContent } from './content.ts';
import { lockPurge } from './purge.ts';
import { type Searchable, wordKeysOf } from './words.ts';

export async function isChangingOver(sql: Sql): Promise<boolean> {
  const { isChanging } = only(
    await sql<{ isChanging: boolean }[]>`select exists (select from change_over) as "isChanging"`,
  );
  return isChanging;
}

/** How many messages are changed so far; null if all are, or if another process is changing them. */
export function changeOverBatch(sql: Sql, batch = 100): Promise<number | null> {
  return transaction(sql, async (sql) => {
    const [progress] = await sql<{ position: string; until: string; changed: number }[]>`
      select position, until, changed::int as changed from change_over for update skip locked`;
    if (!progress) return null;
    // The purge deletes the same rows, also the oldest first: each could wait for the other.
    await lockPurge(sql);
    const messages = await readBatch(sql, progress, batch);
    const last = messages.at(-1);
    if (!last) {
      await sql`delete from change_over`;
      return null;
    }
    await changeMessages(sql, messages);
    await compressRaw(sql, messages);
    const changed = progress.changed + messages.length;
    await sql`update change_over set position = ${last.id}, changed = ${changed}`;
    return changed;
  });
}

interface OldMessage {
  id: string;
  ownerId: string;
  rawId: string | null;
  /** JSON text. */
  summary: string;
  /** Null if the message is in its own row already. */
  eventId: string | null;
  data: string | null;
}

/** A message and its raw bytes can have megabytes: a batch ends when it has as much as a large one. */
const maxBatchBytes = 4 * 1024 * 1024;

async function readBatch(
  sql: Sql,
  { position, until }: { position: string; until: string },
  batch: number,
): Promise<OldMessage[]> {
  return sql<OldMessage[]>`
    with next as materialized (
      select messages.id, messages.owner_id, messages.raw_id, messages.summary, events.id as event_id,
        sum(coalesce(events.bytes, 0) + size) over (order by messages.id) - coalesce(events.bytes, 0) - size as before
      from messages left join events
        on events.id = messages.event_id and messages.content is null and events.data is not null
      where messages.id > ${position} and messages.id <= ${until} and (words is null or events.id is not null)
      order by messages.id limit ${batch}
    )
    select next.id, next.owner_id as "ownerId", raw_id as "rawId", summary::text as summary, event_id as "eventId",
      events.data::text as data
    from next left join events on events.id = next.event_id
    where before < ${maxBatchBytes}
    order by next.id`;
}

const noPeople: Searchable = {
  ...{ subject: null, from: null, sender: null, recipient: null },
  ...{ replyTo: [], to: [], cc: [], bcc: [] },
};

/** One update for each message: an update writes to every index of the table, and that is most of the work. */
async function changeMessages(sql: Sql, messages: readonly OldMessage[]): Promise<void> {
  const contents = await Promise.all(
    messages.map(({ data }) => (data === null ? null : packContent(null, data))),
  );
  const words = messages.map(({ ownerId, summary }) => {
    const keys = wordKeysOf(ownerId, { ...noPeople, ...JSON.parse(summary) });
    return `{${keys.join(',')}}`;
  });
  await sql`
    update messages set words = coalesce(messages.words, changed.words::bigint[]),
      content = coalesce(changed.content, messages.content),
      event_id = case when changed.content is null then messages.event_id end
    from unnest(${messages.map(({ id }) => id)}::uuid[], ${contents}::bytea[], ${words}::text[]) as changed (id, content, words)
    where messages.id = changed.id`;
  await sql`
    update events set data = null, is_inline = inline_raw_id is not null, inline_raw_id = null
    where id = any (${messages.flatMap(({ eventId }) => eventId ?? [])}::uuid[])`;
}

async function compressRaw(sql: Sql, messages: readonly OldMessage[]): Promise<void> {
  const chunks = await sql<RawChunk[]>`
    select raw_id as "rawId", n, octet_length(bytes) as size from raw_chunks
    where raw_id = any (${messages.map(({ rawId }) => rawId)}::uuid[]) and not is_compressed order by raw_id, n`;
  for (const group of groupBySize(chunks)) {
    const [rawIds, ns] = [group.map(({ rawId }) => rawId), group.map(({ n }) => n)];
    const isInGroup = sql`(raw_id, n) in (select * from unnest(${rawIds}::uuid[], ${ns}::int[]))`;
    const rows = await sql<{ rawId: string; n: number; bytes: string }[]>`
      select raw_id as "rawId", n, encode(bytes, 'base64') as bytes from raw_chunks where ${isInGroup}`;
    const compressed = await Promise.all(rows.map(({ bytes }) => compress(Buffer.from(bytes, 'base64'))));
    await sql`
      update raw_chunks set bytes = changed.bytes, is_compressed = true
      from unnest(${rows.map(({ rawId }) => rawId)}::uuid[], ${rows.map(({ n }) => n)}::int[], ${compressed}::bytea[])
        as changed (raw_id, n, bytes)
      where raw_chunks.raw_id = changed.raw_id and raw_chunks.n = changed.n`;
  }
}

interface RawChunk {
  rawId: string;
  n: number;
  size: number;
}

/** Groups of about `maxBatchBytes`: the chunks of one large message are read a few at a time. */
function groupBySize(chunks: readonly RawChunk[]): RawChunk[][] {
  const groups: RawChunk[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const chunk of chunks) {
    bytes += chunk.size;
    if (bytes > maxBatchBytes) {
      groups.push([]);
      bytes = chunk.size;
    }
    groups.at(-1)?.push(chunk);
  }
  return groups;
}
