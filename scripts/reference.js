/**
 * Writes dist/reference, the script that shows the API at `/docs`: Scalar's, as its package for fastify serves it. `npm run build` calls
 * this, and so does `npm start` in a checkout, where it does nothing while the result is there. Built, because the package needs 20
 * others and 16 MB for this one file. Plain JavaScript, because it also runs on Node 20.
 */
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { constants, gzipSync } from 'node:zlib';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const folder = path.join(root, 'dist/reference');

export async function buildReference() {
  const { devDependencies } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));
  // The version is in the name: browsers keep the file for a year.
  const file = path.join(folder, `scalar-${devDependencies['@scalar/fastify-api-reference']}.js.gz`);
  if (existsSync(file)) return;
  const { fastify } = await import('fastify');
  const { default: scalar } = await import('@scalar/fastify-api-reference');
  const app = fastify();
  await app.register(scalar, { routePrefix: '/', configuration: { url: '/openapi.json' } });
  const { rawPayload } = await app.inject('/js/scalar.js');
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  // Renamed into place: another start at the same time never reads half a file.
  const fresh = `${file}.${process.pid}`;
  writeFileSync(fresh, gzipSync(rawPayload, { level: constants.Z_BEST_COMPRESSION }));
  renameSync(fresh, file);
}
