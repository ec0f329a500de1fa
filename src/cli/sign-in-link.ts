/** `posthorn sign-in-link`: prints a link that signs in to the dashboard once. */
import type { Command } from 'commander';
import type { Pool } from '../db/client.ts';
import { posthorn } from '../lib/command-line.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { originOf, signInUrl } from '../lib/origin.ts';
import { createSignInLink } from '../store/sessions.ts';
import { listUsers, type User } from '../store/users.ts';
import { addCommand, print, requireUser, withSchema } from './database-tool.ts';

export function addSignInLink(program: Command): void {
  addCommand(program, 'sign-in-link', 'print a link that signs in to the dashboard, once, within 10 minutes')
    .option('--user <address or id>', 'who signs in; needed if there are several users')
    .action((options) =>
      withSchema(async (sql, _log, { publicUrl, host, port, basePath }) => {
        const user =
          options.user === undefined ? await findOnlyUser(sql) : await requireUser(sql, options.user);
        const { token, expiresAt } = await createSignInLink(sql, user.userId);
        const url = signInUrl(`${publicUrl ?? originOf(host, port)}${basePath}`, token);
        print(options, { url, expiresAt }, url);
      }),
    );
}

async function findOnlyUser(sql: Pool): Promise<User> {
  const [user, another] = await listUsers(sql);
  if (!user) {
    throw new OperatorError(
      `There is no user yet. Create one: ${posthorn} users create --email you@example.com`,
    );
  }
  if (another) {
    throw new OperatorError(
      `There are several users. Name one: ${posthorn} sign-in-link --user ${user.email}`,
    );
  }
  return user;
}
