/**
 * Builds dashboard/dist, the files that a browser loads. `npm run build` calls it, and so does `npm start` in a checkout, where it does
 * nothing while no source is newer than the result. Plain JavaScript, because it also runs on Node 20.
 */
import { copyFileSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const source = path.join(root, 'dashboard');
const dist = path.join(source, 'dist');
/** Copied as they are; index.html last, because its time says when the build ended. */
const copied = ['horn.svg', 'index.html'];

export async function buildDashboard() {
  const { build } = await import('esbuild');
  // Renamed into place at the end: another start at the same time never reads half a file.
  const fresh = path.join(root, 'node_modules', `.dashboard-${process.pid}`);
  await build({
    entryPoints: [path.join(source, 'main.tsx'), path.join(source, 'main.css')],
    outdir: fresh,
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    tsconfig: path.join(source, 'tsconfig.json'),
    legalComments: 'none',
    logLevel: 'warning',
  });
  for (const name of copied) copyFileSync(path.join(source, name), path.join(fresh, name));
  mkdirSync(dist, { recursive: true });
  for (const name of ['main.js', 'main.css', ...copied])
    renameSync(path.join(fresh, name), path.join(dist, name));
  rmSync(fresh, { recursive: true });
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
