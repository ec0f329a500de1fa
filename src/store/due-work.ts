/**
 * Which background loops have work. An idle process asks for all of them with one statement: the round trip to PostgreSQL costs far
 * more than the queries, each of which reads one row of an index. Guarantee: the answer for a loop that has work is true.
 */
import { only, type Sql } from '../db/client.ts';
import { dueConnections } from './imap-connections.ts';
import { mayRunReplay } from './replays.ts';

export interface DueWork {
  /** DNS checks of identities. */
  checks: boolean;
  /** Webhooks whose `enabled` has changed. */
  settling: boolean;
  replays: boolean;
  /** Deliveries to claim, or to be tried again within two seconds. */
  deliveries: boolean;
  /** Recipients of outgoing mail, likewise. */
  mail: boolean;
  /** Connections to mailboxes elsewhere that may be claimed. */
  mailboxes: boolean;
}

export async function findDueWork(sql: Sql): Promise<DueWork> {
  // A worker that is woken waits by itself for the retries of the next two seconds (`Promotion`).
  const soon = sql`now() + interval '2 seconds'`;
  const [readyMailbox, scheduledMailbox] = dueConnections(sql);
  return only(
    await sql<DueWork[]>`
      select ${first(sql, sql`select true from identities where next_check_at <= now() order by next_check_at`)} as checks,
        ${first(sql, sql`select true from webhooks where unsettled_at <= now() and deleted_at is null order by unsettled_at`)}
          as settling,
        ${first(sql, sql`select true from replays where ${mayRunReplay(sql)} order by coalesce(worked_at, created_at)`)}
          as replays,
        ${first(sql, sql`select true from delivery_queue where ready order by owner_id, webhook_id, id`)}
          or ${first(sql, sql`select next_attempt_at <= ${soon} from delivery_queue where not ready order by next_attempt_at`)}
          as deliveries,
        ${first(sql, sql`select true from send_queue where ready order by owner_id, lane_id, id`)}
          or ${first(sql, sql`select next_attempt_at <= ${soon} from send_queue where not ready order by next_attempt_at`)}
          as mail,
        ${first(sql, readyMailbox)} or ${first(sql, scheduledMailbox)} as mailboxes`,
  );
}

/** Whether there may be something to purge. Also true while only pending deliveries are past the retention, which may stay. */
export async function isPurgeDue(sql: Sql, retentionDays: number): Promise<boolean> {
  const dayAgo = sql`now() - interval '24 hours'`;
  const oldest = sql`now() - ${retentionDays} * interval '1 day'`;
  const bound = sql`first_id_at(${oldest})`;
  const { isDue } = only(
    await sql<{ isDue: boolean }[]>`
      select ${first(sql, sql`select created_at < ${dayAgo} from idempotency_records order by created_at`)}
        or ${first(sql, sql`select true from webhooks where deleted_at is not null order by deleted_at`)}
        or exists (select from identity_purges)
        or ${first(sql, sql`select id < ${bound} from delivery_queue order by id`)}
        or ${first(sql, sql`select id < ${bound} from ended_deliveries order by id`)}
        or ${first(sql, sql`select id < ${bound} from events order by id`)}
        or ${first(sql, sql`select created_at < ${oldest} from messages where is_silent order by created_at`)}
        or ${first(sql, sql`select ended_at < ${oldest} from outgoing where ended_at is not null order by ended_at`)}
        or ${first(sql, sql`select created_at < ${oldest} from event_positions order by created_at`)}
        or ${first(sql, sql`select hour < ${oldest} from traffic order by hour`)}
        or ${first(sql, sql`select retired_at < ${dayAgo} from retired_webhook_secrets order by retired_at`)}
        or ${first(sql, sql`select created_at < ${dayAgo} from confirmations order by created_at`)}
        or ${first(sql, sql`select created_at < now() - interval '25 hours' from provider_calls order by created_at`)}
        or ${first(sql, sql`select completed_at < ${oldest} from replays where completed_at is not null order by completed_at`)}
        as "isDue"`,
  );
  return isDue;
}

/** With an order, not with `exists`: there the planner may read the whole table, because it expects to find a row early. */
function first(sql: Sql, query: ReturnType<Sql>) {
  return sql`coalesce((${query} limit 1), false)`;
}
