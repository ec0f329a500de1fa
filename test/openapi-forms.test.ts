/** Bodies that have one of several forms: the document and the service allow the same, and the errors are in our own words. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Ajv } from 'ajv';
import { dereference } from '../src/http/openapi-document.ts';
import { assertProblem, startTestService } from './harness.ts';
import { mailgun, postmark, sendgrid, ses } from './provider-calls.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { call } = service;
const { body: written } = await call('GET', '/openapi.json', { as: null });
const { paths } = dereference(written);
const ajv = new Ajv({ strict: false, validateFormats: false });

function isDocumented(method: string, path: string, body: unknown): boolean {
  const { requestBody } = paths[path][method.toLowerCase()];
  return ajv.validate(requestBody.content['application/json'].schema, body);
}

const { apiKey } = service.user;
const server = { host: 'mail.example.com', port: 465, username: 'ada' };
const password = { ...server, password: 'secret' };
const tokens = { clientId: 'c', refreshToken: 'r', tokenUrl: 'https://tokens.example/token' };
const oauth2 = { ...server, oauth2: tokens };
const both = { ...password, oauth2: tokens };
const credentials = {
  postmark: postmark.credentials,
  mailgun: mailgun.credentials,
  sendgrid: sendgrid.credentials,
  ses: ses.credentials,
};
const kinds = Object.keys(credentials) as (keyof typeof credentials)[];
const other = { postmark: 'mailgun', mailgun: 'ses', sendgrid: 'postmark', ses: 'sendgrid' } as const;

const made = {
  provider: await call('POST', '/providers', {
    body: { kind: 'ses', credentials: credentials.ses },
  }),
  account: await call('POST', '/smtp-accounts', { body: { label: 'Mail', smtp: password } }),
};

const cases: Record<string, { allowed: unknown[]; refused: unknown[] }> = {
  'POST /sessions': {
    allowed: [{ apiKey }],
    refused: [{}, { apiKey, token: 'x' }, { apiKey: 5 }, { apiKey, more: 1 }],
  },
  'POST /providers': {
    allowed: [
      ...kinds.map((kind) => ({ kind, name: 'Ours', credentials: credentials[kind] })),
      {
        kind: 'postmark',
        credentials: { ...credentials.postmark, basicAuth: { username: 'u', password: 'p' } },
      },
    ],
    refused: [
      ...kinds.map((kind) => ({ kind, credentials: credentials[other[kind]] })),
      ...kinds.map((kind) => ({ kind, credentials: {} })),
      ...kinds.map((kind) => ({ kind, credentials: { ...credentials[kind], more: 'x' } })),
      { kind: 'gmail', credentials: credentials.ses },
      { kind: 'mailgun', credentials: { ...credentials.mailgun, region: 'de' } },
      { kind: 'ses', credentials: { ...credentials.ses, region: 'us-east-1.evil.example' } },
      { kind: 'postmark', credentials: { serverToken: 'a b' } },
      {
        kind: 'postmark',
        credentials: { serverToken: 't', basicAuth: { username: 'a:b', password: 'p' } },
      },
    ],
  },
  'PATCH /providers/{id}': {
    allowed: [{}, { credentials: credentials.ses }],
    refused: [{ credentials: {} }, { credentials: { ...credentials.ses, more: 'x' } }],
  },
  'POST /smtp-accounts': {
    allowed: [password, oauth2].flatMap((smtp) =>
      [undefined, null, password, oauth2].map((imap) => ({
        ...{ label: 'Mail', smtp },
        ...(imap === undefined ? {} : { imap: imap && { ...imap, port: 993 } }),
      })),
    ),
    refused: [
      { label: 'Mail', smtp: server },
      { label: 'Mail', smtp: both },
      { label: 'Mail', smtp: null },
      { label: 'Mail', smtp: password, imap: { ...server, port: 993 } },
      { label: 'Mail', smtp: password, imap: { ...both, port: 993 } },
    ],
  },
  'PATCH /smtp-accounts/{id}': {
    allowed: [{}, { smtp: {} }, { smtp: { password: 'new' } }, { smtp: oauth2 }, { imap: null }],
    refused: [{ smtp: { password: 'new', oauth2: tokens } }, { imap: { ...both, port: 993 } }],
  },
};

for (const [operation, { allowed, refused }] of Object.entries(cases)) {
  const [method = '', path = ''] = operation.split(' ');
  const id = path.startsWith('/providers') ? made.provider.body.id : made.account.body.id;
  const send = (body: unknown) => call(method, path.replace('{id}', id), { body });
  test(`${operation}: the document and the service allow and refuse the same`, async () => {
    for (const body of allowed) {
      assert.ok(isDocumented(method, path, body), `the document refuses ${JSON.stringify(body)}`);
      const { status, text } = await send(body);
      assert.ok(status < 300, `${JSON.stringify(body)}: ${text}`);
    }
    for (const body of refused) {
      assert.ok(!isDocumented(method, path, body), `the document allows ${JSON.stringify(body)}`);
      const { errors = [] } = assertProblem(await send(body), 400, 'invalid_body');
      assert.ok(errors.length > 0);
      for (const { message } of errors) assert.doesNotMatch(message, /schema|keyword|oneOf|anyOf/);
    }
  });
}

describe('the forms of a body have names, of which generators make types:', () => {
  const { schemas } = written.components;
  const namesOf = (schema: { oneOf?: object[]; anyOf?: object[] }) =>
    (schema.oneOf ?? schema.anyOf ?? []).map((one) =>
      '$ref' in one ? String(one.$ref).split('/').at(-1) : one,
    );
  const none = { type: 'null' };
  for (const [name, schema, names] of [
    ['a session', schemas.CreateSessionRequest, ['ApiKeySignIn', 'LinkSignIn']],
    [
      'a provider',
      schemas.CreateProviderRequest,
      ['NewSesProvider', 'NewMailgunProvider', 'NewPostmarkProvider', 'NewSendgridProvider'],
    ],
    [
      'credentials',
      schemas.UpdateProviderRequest.properties.credentials,
      ['SesCredentials', 'MailgunCredentials', 'PostmarkCredentials', 'SendgridCredentials'],
    ],
    ['a server', schemas.CreateSmtpAccountRequest.properties.smtp, ['PasswordServer', 'OAuth2Server']],
    [
      'a server or none',
      schemas.CreateSmtpAccountRequest.properties.imap,
      ['PasswordServer', 'OAuth2Server', none],
    ],
    [
      'changes of a server',
      schemas.UpdateSmtpAccountRequest.properties.smtp,
      ['PasswordServerChanges', 'OAuth2ServerChanges'],
    ],
  ] as const) {
    test(name, () => assert.deepEqual(namesOf(schema), names));
  }
});

test('neither of two fields, or both, is an error at the field, beside the other errors of the body', async () => {
  const find = async (path: string, body: unknown) =>
    assertProblem(await call('POST', path, { body }), 400, 'invalid_body').errors;
  const neither = { pointer: '/apiKey', code: 'required', message: 'Give "apiKey" or "token".' };
  const both = { pointer: '/token', code: 'mismatch', message: 'Give "apiKey" or "token", not both.' };
  assert.deepEqual(await find('/sessions', {}), [neither]);
  assert.deepEqual(await find('/sessions', { apiKey: 'a', token: 'b' }), [both]);
  assert.deepEqual(await find('/smtp-accounts', { smtp: server }), [
    { pointer: '/label', code: 'required', message: '"label" is required.' },
    { pointer: '/smtp/password', code: 'required', message: 'Give "password" or "oauth2".' },
  ]);
});
