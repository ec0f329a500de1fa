/** This Posthorn as it may be one version on: a copy with one more migration. */
import { cpSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { root } from './programs.ts';

export function makeNewer(folder: string, migration: string): void {
  for (const name of ['src', 'migrations', 'docs/guide.md', 'package.json'])
    cpSync(path.join(root, name), path.join(folder, name), { recursive: true });
  symlinkSync(path.join(root, 'node_modules'), path.join(folder, 'node_modules'));
  writeFileSync(path.join(folder, 'migrations/9001_later.sql'), migration);
}
