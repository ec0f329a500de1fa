/**
 * What Kubernetes, Compose and Prometheus take, as JSON Schema: the kinds that `deploy/` and compose.yaml use, with the fields in
 * common use. Every object is closed, so a misspelt key is refused; a right one that is missing here is to be added.
 */
import { Ajv } from 'ajv';

interface Schema {
  [keyword: string]: unknown;
}
type Fields = Record<string, Schema>;

const string = { type: 'string', minLength: 1 };
const boolean = { type: 'boolean' };
const integer = (minimum = 0, maximum = 2 ** 31 - 1) => ({ type: 'integer', minimum, maximum });
const matching = (pattern: string, maxLength = 253) => ({ type: 'string', pattern, maxLength });
const oneOf = (...values: string[]) => ({ type: 'string', enum: values });
const list = (items: Schema) => ({ type: 'array', items, minItems: 1 });
const map = (values: Schema, names: Schema = string) => ({
  type: 'object',
  propertyNames: names,
  additionalProperties: values,
});
const object = (required: Fields, optional: Fields = {}, more: Schema = {}) => ({
  type: 'object',
  required: Object.keys(required),
  properties: { ...required, ...optional },
  additionalProperties: false,
  ...more,
});
/** An object none of whose fields must be there. */
const choice = (optional: Fields, more: Schema = {}) => object({}, optional, more);
const exactlyOne = (...names: string[]) => ({ oneOf: names.map((name) => ({ required: [name] })) });
const atMostOne = (...names: string[]) => ({ not: { required: names } });

// Kubernetes: names and quantities

const label = matching('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$', 63);
const name = matching('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$');
const labels = map(
  matching('^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$', 63),
  matching('^([-.a-z0-9]+/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$', 317),
);
const metadata = object({ name }, { namespace: label, labels, annotations: map({ type: 'string' }) });
const selector = object({ matchLabels: labels });
const port = integer(1, 65_535);
const portName = matching('^(?=.*[a-z])[a-z0-9]([-a-z0-9]*[a-z0-9])?$', 15);
const protocol = oneOf('TCP', 'UDP', 'SCTP');
const portOrName = { anyOf: [port, portName] };
const countOrShare = { anyOf: [integer(), matching('^[0-9]{1,3}%$')] };
const quantity = {
  anyOf: [{ type: 'number', minimum: 0 }, matching('^[0-9]+([.][0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$')],
};
const quantities = map(quantity, oneOf('cpu', 'memory', 'ephemeral-storage'));

// Kubernetes: the pod

const handlers = {
  exec: object({ command: list(string) }),
  httpGet: object({ port: portOrName }, { path: string, scheme: oneOf('HTTP', 'HTTPS') }),
  tcpSocket: object({ port: portOrName }),
};
/** Only readiness may ask for more than one success. */
const probe = (successThreshold: Schema) =>
  choice(
    {
      ...handlers,
      initialDelaySeconds: integer(),
      periodSeconds: integer(1),
      timeoutSeconds: integer(1),
      failureThreshold: integer(1),
      successThreshold,
    },
    exactlyOne('exec', 'httpGet', 'tcpSocket'),
  );
const hook = choice(
  { ...handlers, sleep: object({ seconds: integer() }) },
  exactlyOne('exec', 'httpGet', 'tcpSocket', 'sleep'),
);

const securityOfAll = {
  runAsNonRoot: boolean,
  runAsUser: integer(),
  runAsGroup: integer(),
  seccompProfile: object(
    { type: oneOf('RuntimeDefault', 'Localhost', 'Unconfined') },
    { localhostProfile: string },
  ),
};
const podSecurity = choice({
  ...securityOfAll,
  fsGroup: integer(),
  fsGroupChangePolicy: oneOf('OnRootMismatch', 'Always'),
});
const containerSecurity = choice({
  ...securityOfAll,
  allowPrivilegeEscalation: boolean,
  readOnlyRootFilesystem: boolean,
  capabilities: choice({ add: list(string), drop: list(string) }),
});

const keyOf = object({ name, key: string }, { optional: boolean });
const source = object({ name }, { optional: boolean });
const environmentName = matching('^[A-Za-z_][A-Za-z0-9_]*$');
const valueFrom = choice(
  { configMapKeyRef: keyOf, secretKeyRef: keyOf },
  exactlyOne('configMapKeyRef', 'secretKeyRef'),
);
const container = object(
  { name: label, image: string },
  {
    imagePullPolicy: oneOf('Always', 'IfNotPresent', 'Never'),
    command: list(string),
    args: list(string),
    envFrom: list(
      choice(
        { prefix: string, configMapRef: source, secretRef: source },
        exactlyOne('configMapRef', 'secretRef'),
      ),
    ),
    env: list(
      object(
        { name: environmentName },
        { value: { type: 'string' }, valueFrom },
        atMostOne('value', 'valueFrom'),
      ),
    ),
    ports: list(object({ containerPort: port }, { name: portName, protocol, hostPort: port })),
    startupProbe: probe(integer(1, 1)),
    readinessProbe: probe(integer(1)),
    livenessProbe: probe(integer(1, 1)),
    lifecycle: choice({ postStart: hook, preStop: hook }),
    resources: choice({ requests: quantities, limits: quantities }),
    securityContext: containerSecurity,
    volumeMounts: list(object({ name: label, mountPath: string }, { readOnly: boolean, subPath: string })),
  },
);

const items = list(object({ key: string, path: string }, { mode: integer(0, 0o777) }));
const files = { items, defaultMode: integer(0, 0o777), optional: boolean };
const volumeSources = {
  secret: object({ secretName: name }, files),
  configMap: object({ name }, files),
  emptyDir: choice({ medium: { type: 'string', enum: ['', 'Memory'] }, sizeLimit: quantity }),
};
const pod = object(
  { containers: list(container) },
  {
    initContainers: list(container),
    volumes: list(object({ name: label }, volumeSources, exactlyOne(...Object.keys(volumeSources)))),
    securityContext: podSecurity,
    automountServiceAccountToken: boolean,
    serviceAccountName: name,
    enableServiceLinks: boolean,
    terminationGracePeriodSeconds: integer(),
    // A Deployment takes no other.
    restartPolicy: oneOf('Always'),
    imagePullSecrets: list(object({ name })),
    nodeSelector: labels,
    priorityClassName: name,
    topologySpreadConstraints: list(
      object(
        {
          maxSkew: integer(1),
          topologyKey: string,
          whenUnsatisfiable: oneOf('DoNotSchedule', 'ScheduleAnyway'),
        },
        { labelSelector: selector, minDomains: integer(1), matchLabelKeys: list(string) },
      ),
    ),
  },
);

// Kubernetes: the kinds

const kind = (apiVersion: string, kind: string, required: Fields, optional: Fields = {}) =>
  object({ apiVersion: { const: apiVersion }, kind: { const: kind }, metadata, ...required }, optional);
const dataOf = matching('^[-._a-zA-Z0-9]+$');
const base64 = matching('^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$', 2 ** 20);
const binary = map(base64, dataOf);
const text = map({ type: 'string' }, dataOf);
const strategy = choice({
  type: oneOf('RollingUpdate', 'Recreate'),
  rollingUpdate: choice({ maxSurge: countOrShare, maxUnavailable: countOrShare }),
});
const deployment = object(
  { selector, template: object({ metadata: object({ labels }, { annotations: map(string) }), spec: pod }) },
  { replicas: integer(), strategy, minReadySeconds: integer(), progressDeadlineSeconds: integer(1) },
);
const service = object(
  {
    ports: list(object({ port }, { name: label, targetPort: portOrName, protocol, nodePort: port })),
  },
  {
    selector: labels,
    type: oneOf('ClusterIP', 'NodePort', 'LoadBalancer'),
    externalTrafficPolicy: oneOf('Cluster', 'Local'),
    internalTrafficPolicy: oneOf('Cluster', 'Local'),
    sessionAffinity: oneOf('None', 'ClientIP'),
    loadBalancerSourceRanges: list(string),
  },
);
const budget = object(
  { selector },
  {
    minAvailable: countOrShare,
    maxUnavailable: countOrShare,
    unhealthyPodEvictionPolicy: oneOf('IfHealthyBudget', 'AlwaysAllow'),
  },
  atMostOne('minAvailable', 'maxUnavailable'),
);
const kubernetes = {
  type: 'object',
  required: ['kind'],
  discriminator: { propertyName: 'kind' },
  oneOf: [
    kind('apps/v1', 'Deployment', { spec: deployment }),
    kind('v1', 'Service', { spec: service }),
    kind('policy/v1', 'PodDisruptionBudget', { spec: budget }),
    kind('v1', 'ConfigMap', {}, { data: text, binaryData: binary, immutable: boolean }),
    kind('v1', 'Secret', {}, { type: string, data: binary, stringData: text, immutable: boolean }),
  ],
};

// Compose

const time = matching('^([0-9]+(us|ms|s|m|h))+$');
const composeService = object(
  { image: string },
  {
    build: string,
    init: boolean,
    restart: matching('^(no|always|unless-stopped|on-failure(:[0-9]+)?)$'),
    depends_on: map(
      object(
        { condition: oneOf('service_started', 'service_healthy', 'service_completed_successfully') },
        { required: boolean, restart: boolean },
      ),
    ),
    environment: map({ type: 'string' }, environmentName),
    ports: list(matching('^(([0-9.]+|\\[[0-9a-f:]+\\]):)?([0-9]+:)?[0-9]+(/(tcp|udp))?$')),
    volumes: list(matching('^[^:]+:/[^:]*(:(ro|rw))?$')),
    read_only: boolean,
    tmpfs: list(string),
    cap_drop: list(string),
    security_opt: list(string),
    stop_grace_period: time,
    shm_size: matching('^[0-9]+(b|k|kb|m|mb|g|gb)$'),
    logging: choice({ driver: string, options: map(string) }),
    healthcheck: object(
      { test: list(string) },
      { interval: time, timeout: time, start_period: time, retries: integer(1) },
    ),
  },
);
const compose = object(
  { services: map(composeService) },
  {
    name: string,
    volumes: map({ anyOf: [{ type: 'null' }, choice({ name: string, external: boolean })] }),
  },
);

// Prometheus

const duration = matching('^(?=.)([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$');
const promLabels = map({ type: 'string' }, environmentName);
const alert = object(
  { alert: string, expr: string },
  { for: duration, keep_firing_for: duration, labels: promLabels, annotations: promLabels },
);
const prometheus = object({
  groups: list(object({ name: string, rules: list(alert) }, { interval: duration, limit: integer() })),
});

const ajv = new Ajv({ allErrors: true, strictTypes: true, discriminator: true });
const validators = {
  kubernetes: ajv.compile(kubernetes),
  compose: ajv.compile(compose),
  prometheus: ajv.compile(prometheus),
};
/** What is wrong with a document of the format: nothing when the text is empty. */
export function faultsOf(format: keyof typeof validators, document: unknown): string {
  const validate = validators[format];
  return validate(document) ? '' : ajv.errorsText(validate.errors, { dataVar: format });
}
