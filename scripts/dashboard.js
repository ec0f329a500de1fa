/**
 * Builds dashboard/dist, the files that a browser loads. `npm run build` calls it, and so does `npm start` in a checkout, where it does
 * nothing while no source is newer than the result. Plain JavaScript, because it also runs on Node 20.
 */
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const source = path.join(root, 'dashboard');
const dist = path.join(source, 'dist');
const icon = 'horn.svg';
const index = 'index.html';

/** Scripts and styles have a hash of their content in their name, so that browsers keep them for as long as they like. */
export async function buildDashboard(into = dist) {
  const { build, stop } = await import('esbuild');
  // Renamed into place at the end: another start at the same time never reads half a file.
  const fresh = path.join(path.dirname(into), `.dashboard-${process.pid}`);
  const { metafile } = await build({
    entryPoints: [path.join(source, 'main.tsx'), path.join(source, 'main.css')],
    entryNames: '[name]-[hash]',
    outdir: fresh,
    bundle: true,
    minify: true,
    metafile: true,
    format: 'esm',
    target: 'es2022',
    tsconfig: path.join(source, 'tsconfig.json'),
    legalComments: 'none',
    logLevel: 'warning',
  });
  // Otherwise its process lives as long as the service.
  await stop();
  const built = Object.keys(metafile.outputs).map((file) => path.basename(file));
  copyFileSync(path.join(source, icon), path.join(fresh, icon));
  writeFileSync(path.join(fresh, index), nameFiles(readFileSync(path.join(source, index), 'utf8'), built));
  mkdirSync(into, { recursive: true });
  // index.html last: its time says when the build ended.
  const names = [...built, icon, index];
  for (const name of names) renameSync(path.join(fresh, name), path.join(into, name));
  for (const name of readdirSync(into)) if (!names.includes(name)) rmSync(path.join(into, name));
  rmSync(fresh, { recursive: true });
}

/** The page with the names that the build gave to `main.js` and `main.css`. */
function nameFiles(page, built) {
  return built.reduce((named, name) => named.replace(name.replace(/-[0-9A-Z]+\./, '.'), name), page);
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
    if (entry.name.startsWith('.')) return [];
    if (entry.isDirectory()) return full === dist ? [] : listSources(full);
    return [full];
  });
}
