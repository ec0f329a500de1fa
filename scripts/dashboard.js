/**
 * Builds dashboard/dist, the files that a browser loads. `npm run build` calls it, and so does `npm start` in a checkout, where it does
 * nothing while no source is newer than the result. Plain JavaScript, because it also runs on Node 20.
 */
import { copyFileSync, existsSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const source = path.join(root, 'dashboard');
const dist = path.join(source, 'dist');
/** Copied as they are; index.html last, because its time says when the build ended. */
const copied = ['horn.svg', 'index.html'];

export async function buildDashboard() {
  const { build } = await import('esbuild');
  await build({
    entryPoints: [path.join(source, 'main.tsx'), path.join(source, 'main.css')],
    outdir: dist,
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    tsconfig: path.join(source, 'tsconfig.json'),
    legalComments: 'none',
    logLevel: 'warning',
  });
  for (const name of copied) copyFileSync(path.join(source, name), path.join(dist, name));
}

/** Also true while there is no result at all. */
export function isDashboardStale() {
  const built = path.join(dist, 'index.html');
  if (!existsSync(built)) return true;
  const builtMs = statSync(built).mtimeMs;
  const packages = path.join(root, 'package-lock.json');
  return [packages, ...listSources(source)].some((file) => statSync(file).mtimeMs > builtMs);
}

function listSources(folder) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const full = path.join(folder, entry.name);
    if (entry.isDirectory()) return full === dist ? [] : listSources(full);
    return [full];
  });
}
