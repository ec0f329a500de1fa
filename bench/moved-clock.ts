/**
 * A clock that the bench can move: that of the service by moved-clock.control.ts, that of its database by functions which hide
 * PostgreSQL's own. So days pass in seconds, and the service needs no other setting than a real one has.
 */
import { only, type Pool } from '../src/db/client.ts';
import { Fragment, identifier } from '../src/db/sql.ts';
import type { BenchedService, Preparation } from './service.ts';

const dayMs = 86_400_000;

export const movableClock: Preparation = {
  flags: ['--import', new URL('./moved-clock.control.ts', import.meta.url).href],
  // Before the migrations: the default of a column keeps the function that it was created with.
  async prepare(sql) {
    await moveDatabase(sql, 0);
    const { name } = only(await sql<{ name: string }[]>`select current_database() as name`);
    await sql`alter database ${identifier(name)} set search_path = public, pg_catalog`;
  },
};

export async function moveClock(service: BenchedService, sql: Pool, aheadDays: number): Promise<void> {
  await moveDatabase(sql, aheadDays);
  await service.ask({ aheadMs: aheadDays * dayMs });
}

/** The number is part of the text: the planner puts it in place of the call, which then costs nothing. */
async function moveDatabase(sql: Pool, aheadDays: number): Promise<void> {
  const days = new Fragment([`interval '${aheadDays * 24} hours'`], []);
  await sql`
    create or replace function public.now() returns timestamptz language sql stable parallel safe
    return pg_catalog.now() + ${days}`;
  await sql`
    create or replace function public.clock_timestamp() returns timestamptz language sql volatile parallel safe
    return pg_catalog.clock_timestamp() + ${days}`;
}
