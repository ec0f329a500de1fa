/** Users. Every other row belongs to a user. */
import { only, type Sql } from '../db/client.ts';
import { newId } from '../lib/ids.ts';

export interface User {
  userId: string;
  email: string;
  createdAt: string;
}

function columns(sql: Sql) {
  return sql`
    id as "userId", email,
    iso_time(created_at) as "createdAt"`;
}

export async function ensureUser(sql: Sql, email: string): Promise<{ user: User; created: boolean }> {
  const [made] = await sql<User[]>`
    insert into users (id, email) values (${newId()}, ${email})
    on conflict (lower(email)) do nothing
    returning ${columns(sql)}`;
  if (made) return { user: made, created: true };
  const user = await findUserByEmail(sql, email);
  if (!user) throw new Error('The user was deleted while it was being created');
  return { user, created: false };
}

export async function findUserByEmail(sql: Sql, email: string): Promise<User | undefined> {
  const [user] = await sql<User[]>`select ${columns(sql)} from users where lower(email) = lower(${email})`;
  return user;
}

export async function findUser(sql: Sql, id: string): Promise<User | undefined> {
  const [user] = await sql<User[]>`select ${columns(sql)} from users where id = ${id}`;
  return user;
}

export async function listUsers(sql: Sql): Promise<User[]> {
  return sql<User[]>`select ${columns(sql)} from users order by created_at, id`;
}

/** Only a user without identities, also without those whose mail the purge has not deleted yet. Returns whether it was deleted. */
export async function deleteEmptyUser(sql: Sql, userId: string): Promise<boolean> {
  const { count } = await sql`
    delete from users where id = ${userId} and not exists (select from identities where owner_id = ${userId})`;
  return count === 1;
}

/** The user that was created first. */
export async function findOldestUser(sql: Sql): Promise<User | undefined> {
  const [user] = await sql<User[]>`select ${columns(sql)} from users order by created_at, id limit 1`;
  return user;
}

export async function hasUsers(sql: Sql): Promise<boolean> {
  return only(await sql<{ has: boolean }[]>`select exists (select from users) as has`).has;
}

/** Undefined if there is a user already. If several processes start at once, one of them creates the user. */
export async function createFirstUser(sql: Sql, email: string): Promise<User | undefined> {
  const [user] = await sql<User[]>`
    insert into users (id, email)
    select ${newId()}::uuid, ${email} where not exists (select from users)
    on conflict do nothing
    returning ${columns(sql)}`;
  return user;
}

/** Locks the user until the transaction ends. For changes that depend on all rows of a user: they run one at a time. */
export async function lockUser(sql: Sql, userId: string): Promise<void> {
  await sql`select from users where id = ${userId} for no key update`;
}
