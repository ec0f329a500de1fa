/**
 * `npm run test:package`: packs the package, installs it into an empty folder, and checks that `npx posthorn serve` starts there
 * and responds to a request, and has the dashboard.
 */
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { requireDashboard } from './served-dashboard.ts';

const root = path.dirname(import.meta.dirname);
const folder = mkdtempSync(path.join(tmpdir(), 'posthorn-package-'));
const npm = (args: string[], cwd: string) =>
  execFileSync('npm', [...args, '--loglevel=error'], {
    cwd,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });

try {
  say('packing');
  const [packed] = JSON.parse(
    npm(['pack', '--json', `--pack-destination=${folder}`, '--ignore-scripts'], build()),
  );
  say(`installing ${packed.filename} (${packed.files.length} files) into an empty folder`);
  writeFileSync(path.join(folder, 'package.json'), '{"private":true}');
  npm(['install', '--no-audit', '--no-fund', path.join(folder, packed.filename)], folder);
  say('npx posthorn serve');
  await serve();
  say('1 passed, 0 failed');
} finally {
  rmSync(folder, { recursive: true, force: true });
}

function build(): string {
  execFileSync(process.execPath, ['scripts/build.ts'], { cwd: root, stdio: 'inherit' });
  return root;
}

async function serve(): Promise<void> {
  const child = spawn('npx', ['--no-install', 'posthorn', 'serve'], {
    cwd: folder,
    env: { ...process.env, PORT: '0', POSTHORN_SMTP_PORT: '0', POSTHORN_SUBMISSION_PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise((resolve) => child.on('exit', resolve));
  let output = '';
  await new Promise<void>((resolve) => {
    child.stdout.on('data', (chunk) => {
      output += chunk;
      if (/is ready/.test(output)) resolve();
    });
    ended.then(() => resolve());
  });
  const url = /is ready: (http:\S+)/.exec(output)?.[1];
  const key = /ph_[0-9A-Za-z]{38}/.exec(output)?.[0];
  const response = await fetch(`${url}/me`, { headers: { authorization: `Bearer ${key}` } });
  say(`GET /me ${response.status} ${await response.text()}`);
  const docs = await (await fetch(`${url}/docs`)).text();
  const script = await fetch(`${url}/${/docs\/scalar[^"]+/.exec(docs)?.[0]}`);
  say(`GET ${script.url} ${script.status}: ${(await script.text()).length} characters`);
  const dashboard = requireDashboard(url ?? '').finally(() => child.kill('SIGTERM'));
  say(await dashboard);
  await ended;
  if (response.status !== 200 || script.status !== 200)
    throw new Error(`The installed package does not respond with 200:\n${output}`);
}

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}
