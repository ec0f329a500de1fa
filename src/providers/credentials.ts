/** The form of the credentials of each kind of provider. Pure. docs/providers.md says where each value comes from. */

import { createPublicKey, type KeyObject } from 'node:crypto';
import { cutGiven } from '../lib/cut-given.ts';
import type { FieldError } from '../problems.ts';
import type { ProviderKind } from '../store/providers.ts';

/** Null for a valid value; otherwise the rest of the sentence that begins with the name of the field. */
type Check = (value: unknown, all: Record<string, unknown>) => string | null;

interface Field {
  check: Check;
  /** For the OpenAPI document. `check` may be stricter: a schema cannot express every rule. */
  schema: object;
  optional?: true;
}

const maxSecret = 1000;

function matching(pattern: RegExp, fault: string, schema: object = {}): Field {
  return {
    check: (value) =>
      typeof value === 'string' && value.length <= maxSecret && pattern.test(value) ? null : fault,
    schema: { type: 'string', maxLength: maxSecret, pattern: pattern.source, ...schema },
  };
}

/** Printable ASCII: these values are sent in SMTP and HTTP logins. */
const secret = matching(
  /^[\x21-\x7e]+$/,
  `must be a text of 1 to ${maxSecret} printable ASCII characters without spaces.`,
);
/** RFC 7617 §2: a colon would end the name. */
const basicUsername = matching(/^[\x21-\x39\x3b-\x7e]+$/, 'has no colon.');
const verificationKey: Field = {
  check: (value) =>
    typeof value === 'string' && readVerificationKey(value)
      ? null
      : 'must be the public key that SendGrid shows: a key for ECDSA P-256 in base64.',
  schema: {
    type: 'string',
    minLength: 1,
    description: 'The public key that SendGrid shows: ECDSA P-256 in base64.',
  },
};
const topicArn = /^arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[\w-]{1,256}$/;

const fields: Record<ProviderKind, Record<string, Field>> = {
  postmark: {
    serverToken: secret,
    basicAuth: {
      optional: true,
      check: (value) =>
        isRecord(value) &&
        Object.keys(value).every((key) => key === 'username' || key === 'password') &&
        secret.check(value.password, {}) === null &&
        basicUsername.check(value.username, {}) === null
          ? null
          : 'must be an object with "username" and "password"; the username has no colon.',
      schema: {
        type: 'object',
        description: 'If you set it at Postmark.',
        properties: { username: basicUsername.schema, password: secret.schema },
        required: ['username', 'password'],
        additionalProperties: false,
      },
    },
  },
  mailgun: {
    username: secret,
    password: secret,
    signingKey: secret,
    region: {
      check: (value) => (value === 'us' || value === 'eu' ? null : 'must be "us" or "eu".'),
      schema: { type: 'string', enum: ['us', 'eu'], description: 'Where your domain is at Mailgun.' },
    },
  },
  sendgrid: {
    apiKey: secret,
    verificationKey,
    inboundVerificationKey: {
      ...verificationKey,
      optional: true,
      schema: { ...verificationKey.schema, description: 'If Inbound Parse has another key.' },
    },
  },
  ses: {
    username: secret,
    password: secret,
    // Names hosts, so it has the form of a region and nothing else.
    region: matching(
      /^[a-z]{2}(?:-[a-z]{2,12}){1,2}-\d{1,2}$/,
      'must be a region of AWS, such as us-east-1.',
    ),
    topicArn: {
      check: (value, { region }) =>
        typeof value === 'string' && topicArn.test(value) && value.split(':')[3] === region
          ? null
          : 'must be the ARN of an SNS topic in the same region, such as arn:aws:sns:us-east-1:123456789012:mail.',
      schema: {
        type: 'string',
        pattern: topicArn.source,
        description: 'The ARN of an SNS topic in the same region.',
      },
    },
  },
};

/** The kind in names of the OpenAPI document, such as `PostmarkCredentials`. */
export function titleOf(kind: ProviderKind): string {
  return `${kind.charAt(0).toUpperCase()}${kind.slice(1)}`;
}

/** The schema of the credentials of a kind, for the OpenAPI document. */
export function describeCredentials(kind: ProviderKind): object {
  const known = Object.entries(fields[kind]);
  return {
    title: `${titleOf(kind)}Credentials`,
    description: 'Never shown again.',
    type: 'object',
    properties: Object.fromEntries(known.map(([name, { schema }]) => [name, schema])),
    required: known.filter(([, { optional }]) => !optional).map(([name]) => name),
    additionalProperties: false,
  };
}

/** The faults of the credentials of a kind, for the body of a request. */
export function findCredentialFaults(kind: ProviderKind, given: unknown): FieldError[] {
  if (!isRecord(given)) return [];
  const known = fields[kind];
  const unknown = Object.keys(given).filter((name) => !Object.hasOwn(known, name));
  const errors = unknown.map(
    (name): FieldError => ({
      pointer: `/credentials/${cutGiven(name).replaceAll('~', '~0').replaceAll('/', '~1')}`,
      code: 'unknown_field',
      message: `Unknown field "${cutGiven(name)}". The credentials of ${kind} have: ${Object.keys(known).join(', ')}.`,
    }),
  );
  for (const [name, { check, optional }] of Object.entries(known)) {
    const pointer = `/credentials/${name}` as const;
    const value = given[name];
    if (value === undefined) {
      if (!optional)
        errors.push({ pointer, code: 'required', message: `"credentials/${name}" is required for ${kind}.` });
      continue;
    }
    const fault = check(value, given);
    if (fault) errors.push({ pointer, code: 'invalid_value', message: `"credentials/${name}" ${fault}` });
  }
  return errors;
}

/** Null: not a key for ECDSA P-256. */
export function readVerificationKey(base64: string): KeyObject | null {
  try {
    const key = createPublicKey({ key: Buffer.from(base64, 'base64'), format: 'der', type: 'spki' });
    const { namedCurve } = key.asymmetricKeyDetails ?? {};
    return key.asymmetricKeyType === 'ec' && namedCurve === 'prime256v1' ? key : null;
  } catch {
    return null;
  }
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
