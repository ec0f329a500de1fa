/** `npm run build`: writes dist/, the JavaScript of the published package (Node does not run TypeScript in node_modules). */
import { spawnSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import path from 'node:path';

const root = path.dirname(import.meta.dirname);
rmSync(path.join(root, 'dist'), { recursive: true, force: true });
const tsc = path.join(root, 'node_modules/.bin/tsc');
const { status } = spawnSync(tsc, ['-p', 'tsconfig.build.json'], { cwd: root, stdio: 'inherit' });
process.exitCode = status ?? 1;
