/**
 * `npm run build`: writes what the published package contains instead of sources: dist/, the JavaScript of the service (Node does not
 * run TypeScript in node_modules) and the script of `/docs`, and dashboard/dist.
 */
import { spawnSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import path from 'node:path';
import { buildDashboard } from './dashboard.js';
import { buildReference } from './reference.js';

const root = path.dirname(import.meta.dirname);
rmSync(path.join(root, 'dist'), { recursive: true, force: true });
const tsc = path.join(root, 'node_modules/.bin/tsc');
const { status } = spawnSync(tsc, ['-p', 'tsconfig.build.json'], { cwd: root, stdio: 'inherit' });
process.exitCode = status ?? 1;
await buildDashboard();
await buildReference();
