/** The targets by name, and where their failures are saved. */
import path from 'node:path';
import { http } from './http.ts';
import { mime } from './mime.ts';
import { smtp } from './smtp.ts';
import type { Target } from './target.ts';
import { values } from './values.ts';

export const targets: Record<string, Target> = { mime, smtp, http, values };

/** Not under version control. */
export const foundFolder = path.join(import.meta.dirname, 'found');

export function againWith(name: string, seed: number, number: number): string {
  return `npm run test:fuzz -- ${name} --seed ${seed} --case ${number}`;
}
