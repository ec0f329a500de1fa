/**
 * What `deploy/`, the Dockerfile and compose.yaml say, held against the service: every setting exists and the whole is taken by
 * config.ts, every port and probe is one that it serves, every selector finds its pods, every metric is one that it counts.
 * And against who reads them: no key is misspelt and no value of a wrong type, by deploy-types.ts.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { globSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import path from 'node:path';
import { describe, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { parse, parseAllDocuments } from 'yaml';
import { readDockerfile, readEnvironment, readList, readText } from '../scripts/dockerfile.ts';
import { readConfig, settings } from '../src/config.ts';
import { type Documents, findFaults } from './deploy-types.ts';
import { callUrl, startTestService } from './harness.ts';
import { root } from './programs.ts';

const read = (name: string) => readFileSync(path.join(root, name), 'utf8');
const [build, packages, image] = readDockerfile(read('Dockerfile'));
assert.ok(build && packages && image);
const imageEnvironment = readEnvironment(image);

/** What the operator is to fill in. */
const filledIn: Record<string, string> = {
  POSTGRES_PASSWORD: 'f00',
  POSTHORN_SECRET_KEY: Buffer.alloc(32).toString('base64'),
  POSTHORN_MAIL_HOST: 'mx.example.com',
  POSTHORN_PUBLIC_URL: 'https://posthorn.example.com',
};

/** The configuration that a process would have, with no variable that is not a setting. */
function readProcess(environment: Record<string, string>) {
  for (const name of Object.keys(environment)) assert.ok(name in settings, `${name} is not a setting`);
  return readConfig(environment);
}

interface Labels {
  [name: string]: string;
}
interface Probe {
  httpGet: { path: string; port: string };
}
interface Container {
  image: string;
  envFrom: ({ configMapRef: { name: string } } | { secretRef: { name: string } })[];
  env: { name: string; value: string }[];
  ports: { name: string; containerPort: number }[];
  startupProbe: Probe;
  readinessProbe: Probe;
  livenessProbe: Probe;
  volumeMounts?: { name: string; mountPath: string }[];
  lifecycle: { preStop: { exec: { command: string[] } } };
  securityContext: unknown;
}
interface Manifest {
  apiVersion: string;
  kind: keyof Documents;
  metadata: { name: string };
  data?: Record<string, string>;
  stringData?: Record<string, string>;
  spec: {
    selector: Labels & { matchLabels?: Labels };
    ports: { port: number; targetPort: string }[];
    template: {
      metadata: { labels: Labels };
      spec: {
        containers: [Container];
        enableServiceLinks: boolean;
        terminationGracePeriodSeconds: number;
        securityContext: { runAsNonRoot: boolean; runAsUser: number };
        volumes?: { name: string }[];
      };
    };
  };
}

const readManifests = (text: string, file: string) =>
  parseAllDocuments(text).map((document): Manifest => {
    assert.deepEqual(document.errors, [], file);
    return document.toJS();
  });
const manifests = globSync('deploy/kubernetes/*', { cwd: root }).flatMap((file) =>
  readManifests(read(file), file),
);
const ofKind = (kind: keyof Documents) => manifests.filter((manifest) => manifest.kind === kind);

describe('types', () => {
  const documents: { format: keyof Documents; content: unknown }[] = [
    ...manifests.map((content) => ({ format: content.kind, content })),
    { format: 'compose', content: parse(read('compose.yaml')) },
    { format: 'prometheus', content: parse(read('deploy/prometheus-rules.yaml')) },
  ];
  /** Where names are the author's own. */
  const open =
    /\b(labels|matchLabels|selector|data|stringData|annotations|environment|options|services|depends_on|volumes|requests|limits)$/;
  /** A text is allowed as well: a share such as "50%", or the name of a port. */
  const numberOrText = /^(maxSurge|maxUnavailable|minAvailable|targetPort)$/;

  test('every document is taken', () => {
    assert.equal(new Set(manifests.map((manifest) => manifest.kind)).size, 5);
    assert.deepEqual(
      findFaults(documents),
      documents.map(() => ''),
    );
  });

  test('at every place a misspelt key is refused, and a text in place of a number or a boolean', () => {
    const broken: { format: keyof Documents; content: unknown; where: string }[] = [];
    for (const { format, content } of documents) {
      const whole = JSON.parse(JSON.stringify(content));
      const breakEach = (at: Record<string, unknown>, where: string) => {
        for (const [key, value] of Object.entries(at)) {
          const replace = (name: string, given: unknown) => {
            delete at[key];
            at[name] = given;
            broken.push({ format, content: structuredClone(whole), where: `${where}.${name}: ${given}` });
            delete at[name];
            at[key] = value;
          };
          if (!Array.isArray(at) && !open.test(where)) replace(`${key}x`, value);
          const isNumber = typeof value === 'number' && !numberOrText.test(key);
          if (isNumber || typeof value === 'boolean') replace(key, String(value));
          if (typeof value === 'object' && value !== null)
            breakEach(value as Record<string, unknown>, `${where}.${key}`);
        }
      };
      breakEach(whole, format);
      assert.deepEqual(whole, JSON.parse(JSON.stringify(content)), 'every change is undone');
    }
    assert.ok(broken.length > 300, String(broken.length));
    const faults = findFaults(broken);
    assert.deepEqual(
      broken.filter((_, i) => faults[i] === '').map(({ where }) => where),
      [],
    );
  });

  test('where the types take any text, it is a word that Kubernetes knows', () => {
    const words: Record<string, string[]> = {
      whenUnsatisfiable: ['DoNotSchedule', 'ScheduleAnyway'],
      externalTrafficPolicy: ['Cluster', 'Local'],
      unhealthyPodEvictionPolicy: ['IfHealthyBudget', 'AlwaysAllow'],
      type: ['ClusterIP', 'LoadBalancer', 'Opaque', 'Recreate', 'RollingUpdate', 'RuntimeDefault'],
      requests: ['cpu', 'memory'],
      limits: ['cpu', 'memory'],
    };
    JSON.stringify(manifests, (key, value) => {
      const given = typeof value === 'string' ? [value] : Object.keys(value ?? {});
      for (const word of key in words ? given : []) assert.ok(words[key]?.includes(word), `${key}: ${word}`);
      return value;
    });
  });

  test('a refusal says what is wrong, and where', () => {
    const controls: [kind: keyof Documents, right: string, wrong: string, said: RegExp][] = [
      ['Deployment', '"readinessProbe"', '"readinesProbe"', /'"readinesProbe"' does not exist in type/],
      ['Deployment', '"replicas":2', '"replicas":"2"', /to type 'number'.*Here: "replicas"/s],
      ['Deployment', '"apps/v1"', '"apps/v1beta1"', /is not assignable to type '"apps\/v1"'/],
      ['ConfigMap', '"mx.example.com"', '25', /to type 'string'.*Here: "POSTHORN_MAIL_HOST"/s],
    ];
    const broken = controls.map(([kind, right, wrong]) => {
      const written = JSON.stringify(ofKind(kind)[0]);
      assert.ok(written.includes(right));
      return { format: kind, content: JSON.parse(written.replace(right, wrong)) };
    });
    for (const [i, fault] of findFaults(broken).entries()) assert.match(fault, controls[i]?.[3] ?? /never/);
  });
});

describe('Dockerfile', () => {
  test('stands on the pinned Node, as a user who is not root', () => {
    for (const { base } of [build, packages, image])
      assert.equal(base, `node:${read('.node-version').trim()}-bookworm-slim`);
    assert.match(readText(image, 'USER'), /^[1-9]\d+$/);
    assert.match(readText(image, 'RUN'), new RegExp(`useradd .*--uid ${readText(image, 'USER')} `));
  });

  test('its settings are taken, and its ports are those that it serves', () => {
    const config = readProcess({ ...imageEnvironment, ...without('POSTGRES_PASSWORD') });
    const ports = [config.port, config.smtpPort, config.metricsPort];
    assert.deepEqual(readText(image, 'EXPOSE').split(' ').map(Number), ports);
    assert.equal(readText(image, 'VOLUME'), config.dataDir);
    assert.match(readList(image, 'HEALTHCHECK').join(' '), /POSTHORN_METRICS_PORT}\/health\/ready/);
  });
});

const filledProcess = without('POSTGRES_PASSWORD');

function without(name: string): Record<string, string> {
  return Object.fromEntries(Object.entries(filledIn).filter(([key]) => key !== name));
}

test('compose.yaml: its settings are taken, its ports are served, and what it asks for has an answer', () => {
  const { services, volumes } = parse(read('compose.yaml'));
  const { environment, ports, depends_on, image: tag } = services.posthorn;
  const fill = (text: string) =>
    text.replaceAll(/\$\{(\w+):\?[^}]+\}/g, (_, name) => filledIn[name] ?? assert.fail(name));
  const filled = Object.entries<string>(environment).map(([name, text]) => [name, fill(text)]);
  const config = readProcess({ ...imageEnvironment, ...Object.fromEntries(filled) });
  const url = new URL(config.databaseUrl ?? '');
  assert.ok(url.hostname in services && url.hostname in depends_on, url.hostname);
  assert.equal(url.username, services.postgres.environment.POSTGRES_USER);
  assert.equal(url.pathname, `/${services.postgres.environment.POSTGRES_DB}`);
  assert.deepEqual(
    ports.map((given: string) => Number(given.split(':').at(-1))),
    [config.smtpPort, config.port],
  );
  assert.ok(services.postgres.healthcheck.test.length > 1);
  assert.equal(services.postgres.volumes[0].split(':')[0], Object.keys(volumes)[0]);
  assert.equal(tag, `posthorn:${JSON.parse(read('package.json')).version}`);
});

test('the systemd unit: its settings are taken, for the folder that it may write', () => {
  const unit = read('deploy/posthorn.service');
  const lines = read('deploy/posthorn.env.example').match(/^#?[A-Z_]+=.*$/gm) ?? [];
  const pairs = lines.map((line) => line.replace('#', '').split(/=(.*)/s, 2) as [string, string]);
  const given = pairs.map(([name, value]) => [name, value || (filledIn[name] ?? '')]);
  const config = readProcess(Object.fromEntries(given));
  assert.equal(config.production, true);
  assert.equal(config.dataDir, `/var/lib/${/^StateDirectory=(.+)$/m.exec(unit)?.[1]}`);
  assert.match(unit, /^KillMode=mixed$/m);
  assert.deepEqual([config.submissionPort, config.submissionsPort], [587, 465]);
  if (config.smtpPort < 1024) assert.match(unit, /^AmbientCapabilities=CAP_NET_BIND_SERVICE$/m);
});

test('Kubernetes: the six lines in comments open the submission ports', () => {
  const file = 'deploy/kubernetes/smtp.yaml';
  const [deployment, service] = readManifests(read(file).replaceAll('#- {', '- {'), file);
  const [container] = deployment?.spec.template.spec.containers ?? assert.fail();
  const env = Object.fromEntries(container.env.map(({ name, value }) => [name, value]));
  const { submissionPort, submissionsPort, smtpPort } = readProcess({
    ...imageEnvironment,
    ...filledProcess,
    ...env,
  });
  const ports = Object.fromEntries(container.ports.map(({ name, containerPort }) => [name, containerPort]));
  assert.deepEqual(
    [ports.smtp, ports.submission, ports.submissions],
    [smtpPort, submissionPort, submissionsPort],
  );
  assert.deepEqual(
    service?.spec.ports.map(({ port, targetPort }) => [targetPort, port]),
    [
      ['smtp', 25],
      ['submission', 587],
      ['submissions', 465],
    ],
  );
});

describe('Kubernetes', () => {
  const shared = (kind: 'ConfigMap' | 'Secret') =>
    Object.assign({}, ...ofKind(kind).map(({ data, stringData }) => ({ ...data, ...stringData })));
  const probed = new Set<string>();

  for (const { metadata, spec } of ofKind('Deployment')) {
    const pod = spec.template.spec;
    const [container] = pod.containers;
    const { startupProbe, readinessProbe, livenessProbe } = container;
    for (const { httpGet } of [startupProbe, readinessProbe, livenessProbe]) probed.add(httpGet.path);

    test(`${metadata.name}: its settings are taken, and its ports and probes fit its roles`, () => {
      const own = Object.fromEntries(container.env.map(({ name, value }) => [name, value]));
      const config = readProcess({
        ...imageEnvironment,
        ...shared('ConfigMap'),
        ...shared('Secret'),
        ...own,
        POSTHORN_SECRET_KEY: filledIn.POSTHORN_SECRET_KEY as string,
      });
      const { metricsPort } = config;
      const served = {
        ...(config.roles.includes('api') ? { http: config.port } : {}),
        ...(config.roles.includes('smtp') ? { smtp: config.smtpPort } : {}),
        metrics: metricsPort,
      };
      const ports = container.ports.map(({ name, containerPort }) => [name, containerPort]);
      assert.deepEqual(Object.fromEntries(ports), served);
      for (const { httpGet } of [startupProbe, readinessProbe, livenessProbe])
        assert.equal(httpGet.port, 'metrics');
      const mounts = (container.volumeMounts ?? []).map(({ mountPath }) => mountPath);
      if (config.tls) assert.ok(mounts.includes(path.dirname(config.tls.certFile)));
      // The root file system is read-only, and large mail waits in temporary files.
      if (config.roles.includes('smtp')) assert.ok(mounts.includes('/tmp'));
    });

    test(`${metadata.name}: is not root, hears of no services by environment, has time to finish`, () => {
      assert.deepEqual(spec.selector.matchLabels, spec.template.metadata.labels);
      assert.equal(pod.enableServiceLinks, false, 'a service posthorn-smtp would set POSTHORN_SMTP_PORT');
      assert.equal(pod.securityContext.runAsNonRoot, true);
      assert.equal(String(pod.securityContext.runAsUser), readText(image, 'USER'));
      assert.deepEqual(container.securityContext, {
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ['ALL'] },
      });
      const [, seconds] = container.lifecycle.preStop.exec.command;
      assert.ok(pod.terminationGracePeriodSeconds - Number(seconds) >= 30);
      assert.equal(container.image, `posthorn:${JSON.parse(read('package.json')).version}`);
    });

    test(`${metadata.name}: survives the loss of a node (a budget of its own)`, () => {
      const budgets = ofKind('PodDisruptionBudget').filter((budget) => {
        return isDeepStrictEqual(budget.spec.selector.matchLabels, spec.template.metadata.labels);
      });
      assert.equal(budgets.length, 1);
    });
  }

  for (const { metadata, spec } of ofKind('Service')) {
    test(`the service ${metadata.name} finds its pods and their port`, () => {
      const [found, ...more] = ofKind('Deployment').filter((deployment) => {
        return isDeepStrictEqual(deployment.spec.template.metadata.labels, spec.selector);
      });
      assert.ok(found && more.length === 0);
      const names = found.spec.template.spec.containers[0].ports.map(({ name }) => name);
      for (const { targetPort } of spec.ports) assert.ok(names.includes(targetPort), targetPort);
    });
  }

  test('all roles are there, each once', () => {
    const given = ofKind('Deployment').flatMap(({ spec }) => spec.template.spec.containers[0].env);
    const roles = given
      .filter(({ name }) => name === 'POSTHORN_ROLES')
      .flatMap(({ value }) => value.split(','));
    assert.deepEqual(roles.sort(), [...readConfig({}).roles].sort());
  });

  test('what the probes ask is answered in every role, also in one without the API', async () => {
    const metricsPort = await freePort();
    await startTestService({ POSTHORN_ROLES: 'deliver', POSTHORN_METRICS_PORT: String(metricsPort) });
    assert.deepEqual([...probed].sort(), ['/health/live', '/health/ready']);
    for (const at of probed) {
      const answer = await callUrl('GET', `http://127.0.0.1:${metricsPort}${at}`, {});
      assert.deepEqual([answer.status, answer.body], [200, { status: 'ok' }], at);
    }
  });
});

function freePort(): Promise<number> {
  const server = createServer();
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' ? (address?.port ?? 0) : 0));
    });
  });
}

test('the npm package has what the documents in it name: deploy/, the changelog, migrations', () => {
  const packed = execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], {
    ...{ cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] },
  });
  const [{ files }]: [{ files: { path: string }[] }] = JSON.parse(packed);
  const names = files.map((file) => file.path);
  const wanted = [
    ...['CHANGELOG.md', 'README.md', 'LICENSE', 'bin/posthorn.js', 'docs/operations.md'],
    ...globSync('{deploy,migrations}/**/*.{yaml,service,example,sql}', { cwd: root }),
  ];
  for (const name of wanted) assert.ok(names.includes(name), name);
});

describe('metrics', async () => {
  const service = await startTestService();
  const { text } = await service.call('GET', '/metrics');
  const counted = new Map([...text.matchAll(/^# TYPE (\w+) (\w+)$/gm)].map(([, name, type]) => [name, type]));
  const isCounted = (name: string) => {
    const plain = name.replace(/_(bucket|sum|count)$/, '');
    return counted.has(name) || counted.get(plain) === 'histogram';
  };
  const labelsOf = (name: string) => {
    const [, rest = ''] = readFileSync(path.join(root, 'src/lib/metrics.ts'), 'utf8').split(`'${name}'`);
    return rest.split(/\),\n/, 1).join('');
  };

  test('every name in the alert rules is one that the service counts, with that label', () => {
    const { groups } = parse(read('deploy/prometheus-rules.yaml'));
    const rules: { alert: string; expr: string }[] = groups.flatMap(({ rules }: { rules: [] }) => rules);
    const names = rules.flatMap(({ expr }) => expr.match(/\b(posthorn|process|nodejs)_\w+/g) ?? []);
    assert.ok(names.length >= 12);
    for (const name of names) assert.ok(isCounted(name), name);
    for (const { expr } of rules)
      for (const [, name = '', label = ''] of expr.matchAll(/\b(posthorn_\w+)\{(\w+)/g))
        assert.ok(labelsOf(name.replace(/_count$|_bucket$/, '')).includes(`'${label}'`), `${name}{${label}}`);
    const told = new Set(read('docs/operations.md').match(/\bPosthorn[A-Z]\w+/g));
    assert.deepEqual(
      [...told].sort(),
      rules.map(({ alert }) => alert).sort(),
      'docs/operations.md tells of each',
    );
  });

  test('every metric that docs/operations.md names is one that the service counts, and it leaves none of ours out', () => {
    const named = new Set(
      read('docs/operations.md').match(/\b(posthorn|process|nodejs)_[a-z_0-9]+[a-z0-9]/g),
    );
    for (const name of named) assert.ok(isCounted(name), name);
    for (const name of counted.keys()) if (name?.startsWith('posthorn_')) assert.ok(named.has(name), name);
  });
});
