/** `posthorn keys`: creates, lists and revokes API keys. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { posthorn } from '../lib/command-line.ts';
import { isUuid } from '../lib/ids.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { table } from '../lib/table.ts';
import { createApiKey, findKeyOwner, keyScopes, listAllApiKeys, revokeApiKey } from '../store/api-keys.ts';
import { addCommand, print, requireUser, withSchema } from './database-tool.ts';

export function addKeys(program: Command): void {
  const keys = program.command('keys').description('create, list and revoke API keys');

  addCommand(keys, 'create', 'create an API key for a user')
    .requiredOption('--user <address or id>', 'owner of the key')
    .option('--name <name>', 'purpose of the key')
    .addOption(new Option('--scope <scope>', 'what the key may do').choices(keyScopes).default('full'))
    .option('--expires-at <time>', 'end of its validity, such as 2027-01-31T00:00:00Z', readFuture)
    .action((options) =>
      withSchema(async (sql) => {
        const user = await requireUser(sql, options.user);
        const { id, apiKey } = await createApiKey(sql, user.userId, options);
        print(options, { id, apiKey }, `Id      ${id}\nAPI key ${apiKey}   (shown only once)`);
      }),
    );

  addCommand(keys, 'list', 'list the API keys of a user, including revoked keys')
    .requiredOption('--user <address or id>', 'owner of the keys')
    .action((options) =>
      withSchema(async (sql) => {
        const user = await requireUser(sql, options.user);
        const found = await listAllApiKeys(sql, user.userId);
        const rows = found.map((key) => [
          key.id,
          `${key.prefix}…${key.suffix}`,
          key.scope,
          key.revokedAt ? 'revoked' : 'active',
          `last used ${key.lastUsedAt ?? 'never'}`,
          key.name ?? '',
        ]);
        print(options, found, table(rows));
      }),
    );

  addCommand(keys, 'revoke', 'revoke an API key; every process refuses the key within 5 seconds')
    .argument('<id>', 'id of the key, from `keys list`')
    .action((id, options) =>
      withSchema(async (sql) => {
        const ownerId = isUuid(id) ? await findKeyOwner(sql, id) : undefined;
        if (!ownerId || !(await revokeApiKey(sql, ownerId, id))) {
          throw new OperatorError(
            `No active API key with the id "${id}". List the keys: ${posthorn} keys list --user <address>`,
          );
        }
        print(options, { id, revoked: true }, `Revoked the API key ${id}.`);
      }),
    );
}

function readFuture(given: string): string {
  if (Date.parse(given) > Date.now()) return new Date(given).toISOString();
  throw new InvalidArgumentError('Write a time in the future such as 2027-01-31T00:00:00Z.');
}
