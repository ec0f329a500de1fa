/**
 * The change-over of what older versions stored: the message moves from the data of its event to its own row, compressed, and the raw
 * bytes are compressed too. In small batches, while the service runs; what is not changed yet is read as it is.
 * Guarantee: a batch and the position after it are one transaction, so the work goes on after a stop where it was.
 */
import { only, type Sql, transaction } from '../db/client.ts';
import { compress, packContent } from './content.ts';
import { lockPurge } from './purge.ts';

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
    await moveContents(sql, messages);
    await compressRaw(sql, messages);
    const changed = progress.changed + messages.length;
    await sql`update change_over set position = ${last.id}, changed = ${changed}`;
    return changed;
  });
}

interface OldMessage {
  id: string;
  rawId: string | null;
  eventId: string;
  data: string;
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
      select messages.id, messages.raw_id, events.id as event_id,
        sum(events.bytes + size) over (order by messages.id) - events.bytes - size as before
      from messages join events on events.id = messages.event_id
      where messages.id > ${position} and messages.id <= ${until} and content is null
        and events.data is not null
      order by messages.id limit ${batch}
    )
    select next.id, raw_id as "rawId", event_id as "eventId", events.data::text as data
    from next join events on events.id = next.event_id
    where before < ${maxBatchBytes}
    order by next.id`;
}

async function moveContents(sql: Sql, messages: readonly OldMessage[]): Promise<void> {
  const contents = await Promise.all(messages.map(({ data }) => packContent(null, data)));
  await sql`
    update messages set content = changed.content, event_id = null
    from unnest(${messages.map(({ id }) => id)}::uuid[], ${contents}::bytea[]) as changed (id, content)
    where messages.id = changed.id`;
  await sql`
    update events set data = null, is_inline = inline_raw_id is not null, inline_raw_id = null
    where id = any (${messages.map(({ eventId }) => eventId)}::uuid[])`;
}

async function compressRaw(sql: Sql, messages: readonly OldMessage[]): Promise<void> {
  const chunks = await sql<{ rawId: string; n: number }[]>`
    select raw_id as "rawId", n from raw_chunks
    where raw_id = any (${messages.map(({ rawId }) => rawId)}::uuid[]) and not is_compressed order by raw_id, n`;
  for (const { rawId, n } of chunks) {
    const { bytes } = only(
      await sql<{ bytes: string }[]>`
        select encode(bytes, 'base64') as bytes from raw_chunks where raw_id = ${rawId} and n = ${n}`,
    );
    await sql`
      update raw_chunks set bytes = ${await compress(Buffer.from(bytes, 'base64'))}, is_compressed = true
      where raw_id = ${rawId} and n = ${n}`;
  }
}
