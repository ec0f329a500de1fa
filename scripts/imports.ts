/**
 * Who may import whom. The rooms of the house stand in layers; an import may go down, never up or across, and a
 * third-party client is imported in one file, so that replacing it is one file's work.
 */
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** For each room, the rooms it may import besides itself. */
const rooms: Record<string, readonly string[]> = {
  lib: [],
  config: ['lib'],
  problems: ['lib'],
  db: ['lib', 'config', 'problems'],
  store: ['lib', 'config', 'problems', 'db'],
  identities: ['lib', 'config', 'problems', 'db', 'store'],
  mail: ['lib', 'config', 'problems', 'db', 'store'],
  webhooks: ['lib', 'config', 'problems', 'db', 'store'],
  smtp: ['lib', 'config', 'problems', 'db', 'store', 'identities', 'mail', 'webhooks'],
  http: ['lib', 'config', 'problems', 'db', 'store', 'identities', 'mail', 'webhooks'],
  main: ['lib', 'config', 'problems', 'db', 'store', 'identities', 'mail', 'webhooks', 'smtp', 'http'],
  doctor: ['lib', 'config', 'problems', 'db', 'store', 'identities', 'mail', 'webhooks', 'main'],
  reseal: ['lib', 'db', 'store', 'identities', 'webhooks'],
  'cli-identities': ['lib', 'config', 'problems', 'db', 'store', 'identities', 'main'],
  cli: [
    'lib',
    'config',
    'problems',
    'db',
    'store',
    'identities',
    'main',
    'doctor',
    'reseal',
    'cli-identities',
  ],
};

/** Packages that are a way of speaking, used wherever schemas or routes are written; every other has one importer. */
const everywhere = ['typebox', 'fastify', '@fastify/type-provider-typebox'];
/** The driver is loaded in one file; the other two name its types: the embedded server's guard needs no pool. */
const alsoAllowed: Record<string, readonly string[]> = {
  postgres: ['db/driver.ts', 'db/client.ts', 'db/embedded-guard.ts'],
};

export interface SourceFile {
  /** Relative to src/, with forward slashes. */
  name: string;
  text: string;
}

export function readSources(root: string): SourceFile[] {
  const src = path.join(root, 'src');
  return globSync('**/*.ts', { cwd: src }).map((name) => ({
    name: name.replaceAll('\\', '/'),
    text: readFileSync(path.join(src, name), 'utf8'),
  }));
}

/** A sentence for each import that goes where it may not. */
export function findImportFaults(files: readonly SourceFile[]): string[] {
  const faults: string[] = [];
  const importers = new Map<string, Set<string>>();
  for (const { name, text } of files) {
    const room = roomOf(name);
    if (!rooms[room]) faults.push(`src/${name} is in no known room; add ${room} to scripts/imports.ts.`);
    for (const target of listImports(text)) {
      if (target.startsWith('node:')) continue;
      if (!target.startsWith('.')) {
        importers.set(target, (importers.get(target) ?? new Set()).add(name));
        continue;
      }
      const resolved = path.posix.normalize(path.posix.join(path.posix.dirname(name), target));
      const other = roomOf(resolved);
      if (other !== room && !rooms[room]?.includes(other)) {
        faults.push(`src/${name} imports src/${resolved}: ${room} may not import ${other}.`);
      }
    }
  }
  for (const [target, names] of importers) {
    const allowed = alsoAllowed[target] ?? [];
    const others = [...names].filter((name) => !allowed.includes(name));
    if (everywhere.includes(target) || others.length + (allowed.length ? 1 : 0) <= 1) continue;
    faults.push(`${target} is imported by ${[...names].join(', ')}: one file is to own it.`);
  }
  return faults;
}

function roomOf(name: string): string {
  return name.includes('/') ? (name.split('/', 1)[0] ?? '') : name.replace(/\.ts$/, '');
}

function listImports(text: string): string[] {
  const found = text.matchAll(
    /(?:^|\n)\s*(?:import|export)\b[^;'"]*?from\s*['"]([^'"]+)['"]|import\(\s*['"]([^'"]+)['"]\s*\)|(?:^|\n)import\s+['"]([^'"]+)['"]/g,
  );
  return [...found].map((match) => match[1] ?? match[2] ?? match[3] ?? '');
}
