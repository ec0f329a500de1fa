/** `posthorn migrate`: updates the database schema. */
import type { Command } from 'commander';
import { migrate, refuseNewerSchema } from '../db/migrate.ts';
import { addCommand, print, withDatabase } from './database-tool.ts';

export function addMigrate(program: Command): void {
  addCommand(program, 'migrate', 'update the database schema').action((options) =>
    withDatabase(async (sql, log) => {
      await refuseNewerSchema(sql);
      const applied = await migrate(sql, log);
      const text = applied.length > 0 ? `Applied ${applied.join(', ')}.` : 'The schema is up to date.';
      print(options, { applied }, text);
    }),
  );
}
