/**
 * Decides which recipients a message may have now: checks the send rate of the owner, over all processes, and finds suppressed
 * addresses. One statement without a transaction: messages of one owner wait for each other only while the count changes.
 */
import { only, type Sql } from '../db/client.ts';

export interface Admission {
  /** The keys of the addresses that are suppressed. */
  suppressed: ReadonlySet<string>;
  /** Null: the recipients are counted. Otherwise they are too many, and none is counted. */
  waitSeconds: number | null;
}

/** `perMinute` 0: no limit. The first message of a minute may have more: otherwise it could never be sent. */
export async function admitRecipients(
  sql: Sql,
  ownerId: string,
  addressKeys: readonly string[],
  perMinute: number,
): Promise<Admission> {
  const count = addressKeys.length;
  // A minute may start a little after our `now()`: statements do not run in the order of their times. A start far in the future means
  // that the clock was set back.
  const isCurrent = sql`abs(extract(epoch from now() - rate.started_at)) < 60`;
  const counting = sql`
    insert into send_rates as rate (owner_id, started_at, recipients) values (${ownerId}, now(), ${count})
    on conflict (owner_id) do update
    set started_at = case when ${isCurrent} then rate.started_at else now() end,
      recipients = case when ${isCurrent} then rate.recipients + ${count} else ${count} end
    where not ${isCurrent} or rate.recipients + ${count} <= ${perMinute}
    returning 1`;
  const { suppressed, waitSeconds } = only(
    await sql<{ suppressed: string[]; waitSeconds: number | null }[]>`
      with counted as (${perMinute === 0 ? sql`select 1` : counting})
      select array(
        select address_key from suppressions
        where owner_id = ${ownerId} and address_key = any (${addressKeys}::text[])
      ) as suppressed,
      case when not exists (select from counted) then coalesce((
        select greatest(1, ceil(60 - extract(epoch from now() - started_at)))::int from send_rates where owner_id = ${ownerId}
      ), 60) end as "waitSeconds"`,
  );
  return { suppressed: new Set(suppressed), waitSeconds };
}
