/** `posthorn users`: creates and lists users. */
import { type Command, InvalidArgumentError } from 'commander';
import { posthorn } from '../lib/command-line.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { table } from '../lib/table.ts';
import { createApiKey } from '../store/api-keys.ts';
import { ensureUser, listUsers } from '../store/users.ts';
import { addCommand, print, readValue, withSchema } from './database-tool.ts';

export function addUsers(program: Command): void {
  const users = program.command('users').description('create and list users');

  addCommand(users, 'create', 'create a user and an API key')
    .requiredOption('--email <address>', 'address of the user', readAddress)
    .action((options) =>
      withSchema(async (sql) => {
        const made = await sql.begin(async (sql) => {
          const { user, created } = await ensureUser(sql, options.email);
          if (!created) {
            throw new OperatorError(
              `The user ${user.email} already exists. Create a key: ${posthorn} keys create --user ${user.email}`,
            );
          }
          const { apiKey } = await createApiKey(sql, user.userId);
          return { userId: user.userId, email: user.email, apiKey };
        });
        const { userId, email, apiKey } = made;
        print(options, made, `User    ${email}\nId      ${userId}\nAPI key ${apiKey}   (shown only once)`);
      }),
    );

  addCommand(users, 'list', 'list the users').action((options) =>
    withSchema(async (sql) => {
      const found = await listUsers(sql);
      print(options, found, table(found.map((user) => [user.userId, user.createdAt, user.email])));
    }),
  );
}

function readAddress(given: string): string {
  if (!given.includes('@')) throw new InvalidArgumentError('Write an address such as ada@example.com.');
  return readValue(given).value;
}
