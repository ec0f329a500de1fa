/** `posthorn identities`: adds, lists and verifies identities, with the same rows and checks as the service. */
import type { Command } from 'commander';
import type { Config } from '../config.ts';
import type { DnsRecord } from '../contract/identity.ts';
import type { Pool } from '../db/client.ts';
import { makeLookup } from '../identities/lookup.ts';
import { parseRecords } from '../identities/records.ts';
import { checkDomain, makeVerifyParts, prepareProof, type VerifyParts } from '../identities/verify.ts';
import { posthorn } from '../lib/command-line.ts';
import { isUuid, newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { OperatorError } from '../lib/operator-error.ts';
import { loadSecretKeys } from '../lib/secrets.ts';
import { table } from '../lib/table.ts';
import { type AddressOrDomain, readAddressOrDomain } from '../net/address-or-domain.ts';
import { createIdentity, findIdentity, type Identity, listIdentities } from '../store/identities.ts';
import { openSealer } from '../store/sealed-secrets.ts';
import type { User } from '../store/users.ts';
import { findDomainIdentity } from '../store/verification.ts';
import { addCommand, print, readValue, requireUser, withSchema } from './database-tool.ts';

const pageSize = 1000;

export function addIdentities(program: Command): void {
  const identities = program.command('identities').description('add, list and verify identities');

  addCommand(identities, 'list', 'list the identities of a user with their status')
    .requiredOption('--user <address or id>', 'owner of the identities')
    .action((options) =>
      withSchema(async (sql) => {
        const found = await listAllIdentities(sql, await requireUser(sql, options.user));
        print(options, found, table(found.map(({ id, kind, status, value }) => [id, kind, status, value])));
      }),
    );

  addCommand(identities, 'add', 'connect an address or a domain, and show the required DNS records')
    .requiredOption('--user <address or id>', 'owner of the new identity')
    .requiredOption(
      '--value <value>',
      'an address or a domain, such as sales@example.com or example.com',
      readValue,
    )
    .option('--incoming', 'receive the mail of all addresses of the domain', false)
    .action((options) =>
      withSchema(async (sql, log, config) => {
        const user = await requireUser(sql, options.user);
        const made = await addIdentity(sql, log, config, user, options);
        const isDomain = made.kind === 'domain';
        const text = isDomain ? describeIdentity(made, made) : `${made.value} is ${made.status}`;
        print(options, made, [text, ...describeNextStep(made, user)].join('\n\n'));
      }),
    );

  addCommand(identities, 'verify', 'check the DNS records now; exit code 1 if the identity is not verified')
    .argument('<identity>', 'value or id of the identity')
    .requiredOption('--user <address or id>', 'owner of the identity')
    .action((given, options) =>
      withSchema(async (sql, log, config) => {
        const found = await findOwnIdentity(sql, await requireUser(sql, options.user), given);
        const { identity, domain } = await verifyIdentity(sql, log, config, found);
        print(options, identity, describeIdentity(identity, domain));
        if (identity.status !== 'verified') process.exitCode = 1;
      }),
    );

  addCommand(
    identities,
    'dns',
    'show the required DNS records, the result of the last check, and what to change',
  )
    .argument('<identity>', 'value or id of the identity')
    .requiredOption('--user <address or id>', 'owner of the identity')
    .action((given, options) =>
      withSchema(async (sql) => {
        const identity = await findOwnIdentity(sql, await requireUser(sql, options.user), given);
        const domain = await findProvingIdentity(sql, identity);
        print(options, readRecordsOf(domain), describeIdentity(identity, domain));
      }),
    );
}

async function listAllIdentities(sql: Pool, { userId }: User): Promise<Identity[]> {
  const all: Identity[] = [];
  let after: Parameters<typeof listIdentities>[3]['after'] = null;
  do {
    const page = await listIdentities(sql, userId, {}, { limit: pageSize, after });
    all.push(...page.rows.map(({ position, ...identity }) => identity));
    after = page.next;
  } while (after);
  return all;
}

async function addIdentity(
  sql: Pool,
  log: Log,
  config: Config,
  { userId, email }: User,
  given: { value: AddressOrDomain; incoming: boolean },
): Promise<Identity> {
  const { kind, value, key, domain } = given.value;
  if (kind === 'email' && given.incoming)
    throw new OperatorError(
      '--incoming is for domains. An address always receives its own mail. Remove --incoming.',
    );
  const id = newId();
  const proven = { id, ownerId: userId, domain, incomingDomain: given.incoming };
  const parts = await openVerifyParts(sql, log, config);
  const made = await createIdentity(sql, userId, {
    ...{ id, kind, value, valueKey: key, domain, incomingDomain: given.incoming },
    ...{ providerId: null, smtpAccountId: null, meta: '{}' },
    proof: kind === 'domain' ? await prepareProof(parts, proven) : null,
  });
  if (made) return made;
  throw new OperatorError(
    `${email} already has the identity ${value}. Show its status: ${posthorn} identities dns ${value} --user ${email}`,
  );
}

async function openVerifyParts(sql: Pool, log: Log, config: Config): Promise<VerifyParts> {
  const sealer = await openSealer(sql, loadSecretKeys(config));
  return makeVerifyParts({ sql, sealer, log, mailHost: config.mailHost, lookup: makeLookup(config) });
}

async function findOwnIdentity(sql: Pool, { userId, email }: User, given: string): Promise<Identity> {
  const id = isUuid(given) ? given : await findIdByValue(sql, userId, given);
  const found = id && (await findIdentity(sql, userId, id));
  if (found) return found;
  throw new OperatorError(
    `${email} has no identity "${given}". List the identities: ${posthorn} identities list --user ${email}`,
  );
}

async function findIdByValue(sql: Pool, userId: string, given: string): Promise<string | undefined> {
  const read = readAddressOrDomain(given);
  if ('fault' in read) return undefined;
  const { rows } = await listIdentities(sql, userId, { value: read }, { limit: 1, after: null });
  return rows[0]?.id;
}

/** Checks DNS now. Returns the identity after the check, and the domain whose DNS records prove it. */
async function verifyIdentity(
  sql: Pool,
  log: Log,
  config: Config,
  identity: Identity,
): Promise<{ identity: Identity; domain: Identity }> {
  const { owner_id: ownerId, id, value } = identity;
  const toCheck = await findDomainIdentity(sql, ownerId, identity.domain_identity_id ?? id);
  if (!toCheck) throw new OperatorError(describeDomainNeeded(value, ownerId));
  const parts = await openVerifyParts(sql, log, config);
  await checkDomain(parts, toCheck, { requested: true, signal: new AbortController().signal });
  const [checked, domain] = await Promise.all([
    findIdentity(sql, ownerId, id),
    findIdentity(sql, ownerId, toCheck.id),
  ]);
  if (!checked || !domain) throw new OperatorError(`Another process deleted ${value} during the check.`);
  return { identity: checked, domain };
}

/** The identity whose DNS records prove this one: itself, or the domain of an address. */
async function findProvingIdentity(sql: Pool, identity: Identity): Promise<Identity> {
  if (identity.kind === 'domain') return identity;
  const { owner_id: ownerId, domain_identity_id: domainId, value } = identity;
  const domain = domainId === null ? undefined : await findIdentity(sql, ownerId, domainId);
  if (!domain) throw new OperatorError(describeDomainNeeded(value, ownerId));
  return domain;
}

function describeDomainNeeded(address: string, user: string): string {
  const domain = address.slice(address.lastIndexOf('@') + 1);
  return `An address is verified through its domain, or by a mail that POST /identities/{id}/verify sends to it. Add the domain: ${posthorn} identities add --value ${domain} --user ${user}`;
}

/** Nothing for an address whose domain is verified already. */
function describeNextStep({ kind, status, value, domain_identity_id }: Identity, { email }: User): string[] {
  if (status === 'verified') return [];
  if (kind === 'email' && domain_identity_id === null) return [describeDomainNeeded(value, email)];
  const records = kind === 'domain' ? 'these records' : 'the DNS records of the domain';
  return [`Publish ${records}, then run: ${posthorn} identities verify ${value} --user ${email}`];
}

function readRecordsOf({ dns_records: text }: Identity): DnsRecord[] {
  return parseRecords(text);
}

/** Development has no name for its mail server, and the records of a domain then name `localhost`. */
const unsetMailHost = /(^| a:)localhost( |$)/;
const mailHostNeeded =
  'The name of this mail server is not set. Set POSTHORN_MAIL_HOST (for example mx.example.com), start again, ' +
  'then publish the MX and SPF records.';

const marks = { valid: '✓', missing: '✗', mismatch: '✗', unknown: '?' } as const;

function describeIdentity(identity: Identity, domain: Identity): string {
  const records = readRecordsOf(domain);
  const heads = records.map(({ status, purpose, required, type, name }) => [
    `${marks[status]} ${purpose}`,
    required ? 'required' : 'optional',
    status,
    type,
    name,
  ]);
  const lines = table(heads).split('\n');
  const blocks = records.map((record, index) => [lines[index], ...describeRecord(record)].join('\n'));
  const through = identity.id === domain.id ? '' : `, as ${domain.value} is`;
  const none = `The DNS records are not known yet. Check now: ${posthorn} identities verify ${identity.value} --user ${identity.owner_id}`;
  return [
    `${identity.value} is ${identity.status}${through}`,
    ...(records.length > 0 ? blocks : [none]),
    ...(records.some(({ value }) => unsetMailHost.test(value)) ? [mailHostNeeded] : []),
  ].join('\n\n');
}

function describeRecord(record: DnsRecord): string[] {
  const { priority, value, checkedAt, status, found, note, graceUntil, usedFor } = record;
  const nothing = status === 'unknown' ? 'unknown' : 'nothing';
  const row = (title: string, text: string) => `    ${title.padEnd(8)} ${text}`;
  const isKnown = !unsetMailHost.test(value);
  const published = priority === undefined ? value : `${priority} ${value}`;
  return [
    row('value', isKnown ? published : 'not known yet'),
    row('for', usedFor.join(' and ')),
    ...(found.length > 0 ? found : [checkedAt ? nothing : 'not checked yet']).map((text, index) =>
      row(index === 0 ? 'found' : '', text),
    ),
    ...(note === undefined || !isKnown ? [] : [row('change', note)]),
    ...(graceUntil === undefined ? [] : [row('until', graceUntil)]),
  ];
}
