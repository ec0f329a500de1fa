/** Settings: every mistake is told at once, an explicit setting wins, production is strict. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readConfig } from '../src/config.ts';
import { OperatorError } from '../src/lib/operator-error.ts';

const key = Buffer.alloc(32, 7);
const production = {
  NODE_ENV: 'production',
  POSTHORN_SECRET_KEY: key.toString('base64'),
  POSTHORN_MAIL_HOST: 'mx.example.com',
  POSTHORN_PUBLIC_URL: 'https://mail.example.com',
};

function faultsOf(environment: Record<string, string>): string {
  try {
    readConfig(environment);
  } catch (error) {
    assert.ok(error instanceof OperatorError);
    return error.message;
  }
  return '';
}

test('an empty environment gives the defaults of development', () => {
  const config = readConfig({});
  assert.equal(config.production, false);
  assert.equal(config.host, '127.0.0.1');
  assert.equal(config.port, 3000);
  assert.equal(config.databaseUrl, null);
  assert.equal(config.allowHttp, true);
  assert.equal(config.rateLimitPerMinute, 6000);
  assert.deepEqual(config.roles, ['api', 'smtp', 'deliver', 'send', 'verify', 'sync']);
  assert.equal(config.basePath, '');
});

test('the usual way of outgoing mail, and its limits', () => {
  const development = readConfig({ POSTHORN_MAIL_HOST: 'mx.example.com' });
  assert.deepEqual([development.outbound, development.submissionPort], ['capture', 2587]);
  assert.deepEqual([development.submissionsPort, development.mxPort], [null, 25]);
  assert.equal(development.bounceDomain, 'mx.example.com');
  assert.deepEqual([development.sendRatePerMinute, development.confirmationLimit], [600, 50]);
  const strict = readConfig(production);
  assert.deepEqual([strict.outbound, strict.submissionPort], ['direct', null]);
  const relay = { POSTHORN_RELAY_URL: 'smtp://relay.example' };
  for (const settings of [relay, { ...production, ...relay }])
    assert.equal(readConfig(settings).outbound, 'relay');
  assert.equal(readConfig({ ...relay, POSTHORN_OUTBOUND: 'capture' }).outbound, 'capture');
});

test('production is strict: https only, and three settings are required, all named at once', () => {
  const told = faultsOf({ NODE_ENV: 'production' });
  assert.match(told, /3 mistakes/);
  for (const name of ['POSTHORN_SECRET_KEY', 'POSTHORN_MAIL_HOST', 'POSTHORN_PUBLIC_URL'])
    assert.match(told, new RegExp(name));
  assert.match(
    told,
    /POSTHORN_SECRET_KEY is required with NODE_ENV=production\. Create a key with: openssl rand -base64 32/,
  );
  assert.equal(readConfig(production).allowHttp, false);
});

test('an explicit setting wins over what the mode implies', () => {
  assert.equal(readConfig({ ...production, POSTHORN_ALLOW_HTTP: 'true' }).allowHttp, true);
  assert.equal(readConfig({ POSTHORN_ALLOW_HTTP: '0' }).allowHttp, false);
  assert.equal(readConfig({ ...production, HOST: '0.0.0.0' }).host, '0.0.0.0');
});

test('an empty variable counts as not set', () => {
  assert.equal(readConfig({ PORT: '' }).port, 3000);
});

const traced = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://localhost:4318' };

const mistakes: [Record<string, string>, RegExp][] = [
  [{ PORT: '70000' }, /PORT=70000: write a whole number from 0 to 65535/],
  [{ PORT: '3e3' }, /PORT=3e3/],
  [{ POSTHORN_AUTO_MIGRATE: 'yes' }, /true, false, 1 or 0/],
  [{ POSTHORN_ROLES: 'api,deliverr' }, /Did you mean deliver\?/],
  [{ POSTHORN_LOG_LEVEL: 'verbose' }, /not one of fatal, error/],
  [{ POSTHORN_BASE_PATH: 'api/v2' }, /\/api\/v2/],
  [{ POSTHORN_PUBLIC_URL: 'mail.example.com' }, /absolute URL/],
  [{ POSTHORN_PUBLIC_URL: 'https://mail.example.com/?a=b' }, /absolute URL/],
  [{ DATABASE_URL: 'mysql://localhost/x', POSTHORN_SECRET_KEY: key.toString('hex') }, /postgres:\/\//],
  [{ DATABASE_URL: 'postgres://localhost/x' }, /POSTHORN_SECRET_KEY is required with DATABASE_URL/],
  [{ POSTHORN_ADMIN_TOKEN: 'short' }, /at least 32/],
  [{ POSTHORN_SECRET_KEY: 'short' }, /32 bytes.* Create a key with: openssl rand -base64 32$/m],
  [{ POSTHORN_CORS_ORIGINS: 'https://app.example.com/path' }, /origins such as/],
  [{ POSTHORN_RETRY_SCHEDULE: '5,x' }, /whole number/],
  [{ HOST: '0.0.0.0' }, /NODE_ENV=production, or POSTHORN_INSECURE_DEV=true/],
  [{ POSTHORN_SMTP_HOST: '::' }, /POSTHORN_SMTP_HOST=::/],
  [{ NODE_ENV: 'prod' }, /NODE_ENV=prod: write production/],
  [{ POSTHORN_ROLES: ',' }, /at least one/],
  [{ OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4318' }, /absolute URL such as http:\/\/localhost:4318/],
  [{ ...traced, OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' }, /not one of http\/protobuf, http\/json/],
  [
    { ...traced, OTEL_TRACES_SAMPLER: 'parentbased_traceidratios' },
    /Did you mean parentbased_traceidratio\?/,
  ],
  [{ ...traced, OTEL_TRACES_SAMPLER_ARG: '5' }, /a number from 0 to 1/],
  [{ ...traced, OTEL_RESOURCE_ATTRIBUTES: 'team' }, /name=value/],
  [{ ...traced, OTEL_RESOURCE_ATTRIBUTES: 'team=%E0%A4%A' }, /name=value/],
  [{ ...traced, OTEL_EXPORTER_OTLP_HEADERS: 'x-key=' }, /name=value/],
  [{ ...traced, OTEL_SDK_DISABLED: '1' }, /not one of true, false/],
  [{ ...traced, OTEL_TRACES_EXPORTER: 'console' }, /not one of otlp, none/],
  [{ ...traced, OTEL_BSP_MAX_QUEUE_SIZE: '0' }, /whole number from 1/],
  [{ POSTHORN_RETENTON_DAYS: '3' }, /Did you mean POSTHORN_RETENTION_DAYS\?/],
];

for (const [environment, expected] of mistakes) {
  test(`refused: ${JSON.stringify(environment)}`, () => assert.match(faultsOf(environment), expected));
}

test('settings of traces that a platform sets for all its programs mean nothing without a collector', () => {
  const config = readConfig({ OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc', OTEL_TRACES_SAMPLER: 'xray' });
  assert.equal(config.traces, null);
});

test('a secret is never repeated in the message about it', () => {
  assert.doesNotMatch(faultsOf({ POSTHORN_ADMIN_TOKEN: 'hunter2' }), /hunter2/);
  assert.doesNotMatch(faultsOf({ ...traced, OTEL_EXPORTER_OTLP_HEADERS: 'hunter2' }), /hunter2/);
  assert.doesNotMatch(faultsOf({ DATABASE_URL: 'mysql://u:hunter2@localhost/x' }), /hunter2/);
});

test('several secret keys, in base64 or hex', () => {
  const two = readConfig({
    POSTHORN_SECRET_KEY: `${key.toString('hex')}, ${Buffer.alloc(32, 8).toString('base64')}`,
  });
  assert.deepEqual(two.secretKeys, [key, Buffer.alloc(32, 8)]);
});

test('what Kubernetes sets beside a service called posthorn is named, not refused', () => {
  const config = readConfig({ POSTHORN_SERVICE_HOST: '10.0.0.1', POSTHORN_PORT_80_TCP_ADDR: '10.0.0.1' });
  assert.deepEqual(config.unknown, ['POSTHORN_SERVICE_HOST', 'POSTHORN_PORT_80_TCP_ADDR']);
});

test('base path and public URL lose their trailing slashes', () => {
  const config = readConfig({
    POSTHORN_BASE_PATH: '/api/v2/',
    POSTHORN_PUBLIC_URL: 'https://mail.example.com/',
  });
  assert.equal(config.basePath, '/api/v2');
  assert.equal(config.publicUrl, 'https://mail.example.com');
});

test('traces are off without an endpoint, whatever else is set, and where they are turned off', () => {
  assert.equal(readConfig({}).traces, null);
  assert.equal(readConfig({ OTEL_SERVICE_NAME: 'mail', OTEL_TRACES_SAMPLER: 'always_on' }).traces, null);
  assert.equal(readConfig({ ...traced, OTEL_SDK_DISABLED: 'TRUE' }).traces, null);
  assert.equal(
    readConfig({ ...traced, OTEL_TRACES_EXPORTER: 'none', OTEL_TRACES_SAMPLER: 'x' }).traces,
    null,
  );
});

test('the variables of OpenTelemetry mean what they mean elsewhere', () => {
  const read = (more: Record<string, string>) => readConfig({ ...traced, ...more }).traces;
  assert.deepEqual(read({}), {
    url: 'http://localhost:4318/v1/traces',
    protocol: 'http/protobuf',
    sampling: { parentBased: true, ratio: 1 },
    batch: {
      scheduledDelayMillis: 5000,
      exportTimeoutMillis: 30_000,
      maxQueueSize: 2048,
      maxExportBatchSize: 512,
    },
  });
  const under = { OTEL_EXPORTER_OTLP_ENDPOINT: 'https://collector/tenant/' };
  assert.equal(read(under)?.url, 'https://collector/tenant/v1/traces');
  const whole = { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://other/as-it-is' };
  assert.equal(read(whole)?.url, 'https://other/as-it-is');
  const json = { OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json' };
  assert.equal(read(json)?.protocol, 'http/json');
  assert.equal(
    read({ ...json, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: 'http/protobuf' })?.protocol,
    'http/protobuf',
  );
  const listed = 'authorization=Basic%20YTpi%3D, x-team = mail';
  assert.ok(read({ OTEL_EXPORTER_OTLP_HEADERS: listed, OTEL_RESOURCE_ATTRIBUTES: listed }));
  const part = { OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: '0.25' };
  assert.deepEqual(read(part)?.sampling, { parentBased: false, ratio: 0.25 });
  assert.equal(read({ OTEL_TRACES_SAMPLER: 'parentbased_always_off' })?.sampling.ratio, 0);
  // The argument is for ratios alone.
  assert.equal(read({ ...part, OTEL_TRACES_SAMPLER: 'always_on' })?.sampling.ratio, 1);
});
