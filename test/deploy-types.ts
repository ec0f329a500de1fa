/**
 * What Kubernetes, Compose and Prometheus take, as types. The compiler holds documents against them: it refuses a misspelt key and a
 * value of a wrong type. Kubernetes' types are generated from its own API; the others have what we use: add a key here
 * before you use it.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Deployment } from 'kubernetes-types/apps/v1.js';
import type { ConfigMap, Secret, Service } from 'kubernetes-types/core/v1.js';
import type { PodDisruptionBudget } from 'kubernetes-types/policy/v1.js';

interface Texts {
  [name: string]: string;
}

interface ComposeService {
  image: string;
  build?: string;
  init?: boolean;
  restart?: 'no' | 'always' | 'unless-stopped' | 'on-failure';
  depends_on?: { [service: string]: { condition: 'service_started' | 'service_healthy' } };
  environment?: Texts;
  ports?: string[];
  volumes?: string[];
  read_only?: boolean;
  tmpfs?: string[];
  cap_drop?: string[];
  security_opt?: string[];
  stop_grace_period?: string;
  shm_size?: string;
  logging?: { driver?: string; options?: Texts };
  healthcheck?: {
    test: string[];
    interval?: string;
    timeout?: string;
    start_period?: string;
    retries?: number;
  };
}

interface Alert {
  alert: string;
  expr: string;
  for?: string;
  labels?: Texts;
  annotations?: Texts;
}

/** By the kind of a manifest, or by who reads the document. */
export interface Documents {
  ConfigMap: ConfigMap;
  Deployment: Deployment;
  PodDisruptionBudget: PodDisruptionBudget;
  Secret: Secret;
  Service: Service;
  compose: { services: { [name: string]: ComposeService }; volumes?: { [name: string]: null } };
  prometheus: { groups: { name: string; rules: Alert[] }[] };
}

const options =
  '--ignoreConfig --noEmit --pretty false --strict --skipLibCheck --types node --module nodenext';

/** What the compiler says of each document, all in one run: nothing where the text is empty. */
export function findFaults(documents: readonly { format: keyof Documents; content: unknown }[]): string[] {
  const lines = documents.map(
    ({ format, content }, i) => `export const a${i}: Documents['${format}'] = ${JSON.stringify(content)};`,
  );
  lines.unshift(`import type { Documents } from ${JSON.stringify(import.meta.filename)};`);
  const folder = mkdtempSync(path.join(tmpdir(), 'posthorn-types-'));
  const file = path.join(folder, 'documents.ts');
  writeFileSync(file, lines.join('\n'));
  const args = [...options.split(' '), '--allowImportingTsExtensions', file];
  const cwd = path.dirname(import.meta.dirname);
  const { stdout } = spawnSync('node_modules/.bin/tsc', args, { cwd, encoding: 'utf8' });
  rmSync(folder, { recursive: true });
  const faults = documents.map(() => '');
  const rest = stdout.replace(
    /.*documents\.ts\((\d+),(\d+)\): (.*(?:\n .*)*)\n/g,
    (_, line, column, said) => {
      faults[line - 2] += `${said} Here: ${lines[line - 1]?.slice(column - 1, Number(column) + 39)}`;
      return '';
    },
  );
  assert.equal(rest, '', 'The compiler refuses the documents, and nothing else.');
  return faults;
}
