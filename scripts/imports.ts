/**
 * The import rules. The folders of src/ are layers: a file imports only from its own folder and from lower layers. A package is
 * imported in one file, so that only one file changes when the package is replaced. There are no import cycles between files.
 */
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** From top to bottom. Folders on one line do not import each other. */
const layers: readonly (readonly string[])[] = [
  ['cli'],
  ['main'],
  ['start'],
  ['http', 'smtp'],
  ['mailboxes'],
  ['identities', 'receiving', 'sending', 'providers', 'webhooks'],
  ['contract'],
  ['store'],
  ['queue'],
  ['mailwork'],
  ['mailauth'],
  ['mime'],
  ['net'],
  ['db'],
  ['config'],
  ['problems'],
  ['lib'],
];

/** Packages that many files may import. */
const everywhere = [
  'typebox',
  'fastify',
  '@fastify/type-provider-typebox',
  '@opentelemetry/api',
  'commander',
];
/** Packages that the listed files may import. */
const alsoAllowed: Record<string, readonly string[]> = {
  pg: ['db/connection.ts', 'db/client.ts'],
};

export interface SourceFile {
  /** Relative to the folder that was read, with forward slashes. */
  name: string;
  text: string;
}

export function readSources(root: string, folder = 'src'): SourceFile[] {
  const cwd = path.join(root, folder);
  return globSync('**/*.{ts,tsx}', { cwd }).map((name) => ({
    name: name.replaceAll('\\', '/'),
    text: readFileSync(path.join(cwd, name), 'utf8'),
  }));
}

/** A sentence for each import that breaks a rule. */
export function findImportFaults(files: readonly SourceFile[]): string[] {
  const faults: string[] = [];
  const importers = new Map<string, Set<string>>();
  for (const { name, text } of files) {
    const folder = folderOf(name);
    const layer = layerOf(folder);
    if (layer === -1)
      faults.push(`src/${name} is in an unknown folder; add ${folder} to the layers in scripts/imports.ts.`);
    for (const target of listImports(text)) {
      if (target.startsWith('node:')) continue;
      if (!target.startsWith('.')) {
        importers.set(target, (importers.get(target) ?? new Set()).add(name));
        continue;
      }
      const resolved = resolveImport(name, target);
      const other = folderOf(resolved);
      if (other !== folder && layerOf(other) <= layer) {
        faults.push(`src/${name} imports src/${resolved}: ${folder} may not import ${other}.`);
      }
    }
  }
  for (const [target, names] of importers) {
    const allowed = alsoAllowed[target] ?? [];
    const others = [...names].filter((name) => !allowed.includes(name));
    if (everywhere.includes(target) || others.length + (allowed.length ? 1 : 0) <= 1) continue;
    faults.push(`${target} is imported by ${[...names].join(', ')}; import it in one file only.`);
  }
  return faults;
}

/** A sentence for each cycle of files that import each other. Type imports count too. */
export function findImportCycles(files: readonly SourceFile[]): string[] {
  const imports = mapImports(files);
  const faults: string[] = [];
  const visited = new Set<string>();
  const trail: string[] = [];

  function visit(name: string): void {
    if (trail.includes(name)) {
      const cycle = trail.slice(trail.indexOf(name));
      faults.push(`import cycle ${[...cycle, name].join(' → ')}: move the shared code into a third file.`);
    } else if (!visited.has(name)) {
      visited.add(name);
      trail.push(name);
      for (const target of imports.get(name) ?? []) visit(target);
      trail.pop();
    }
  }
  for (const { name } of files) visit(name);
  return faults;
}

/** All files and packages that a program loads, directly or through others. A worker thread is a program of its own. */
export function listLoaded(files: readonly SourceFile[], program: string): Set<string> {
  const imports = mapImports(files);
  const loaded = new Set([program]);
  for (const name of loaded) for (const target of imports.get(name) ?? []) loaded.add(target);
  return loaded;
}

function mapImports(files: readonly SourceFile[]): Map<string, string[]> {
  return new Map(
    files.map(({ name, text }) => [name, listImports(text).map((target) => resolveImport(name, target))]),
  );
}

function resolveImport(name: string, target: string): string {
  return target.startsWith('.') ? path.posix.join(path.posix.dirname(name), target) : target;
}

function layerOf(folder: string): number {
  return layers.findIndex((folders) => folders.includes(folder));
}

function folderOf(name: string): string {
  return name.includes('/') ? (name.split('/', 1)[0] ?? '') : name.replace(/\.ts$/, '');
}

function listImports(text: string): string[] {
  const found = text.matchAll(
    /(?:^|\n)\s*(?:import|export)\b[^;'"]*?from\s*['"]([^'"]+)['"]|import\(\s*['"]([^'"]+)['"]\s*\)|(?:^|\n)import\s+['"]([^'"]+)['"]/g,
  );
  return [...found].map((match) => match[1] ?? match[2] ?? match[3] ?? '');
}
