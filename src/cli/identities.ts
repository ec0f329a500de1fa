/** `posthorn identities`: adds, lists and verifies identities, beside a running service: the same rows, the same checks. */
import type { Command } from 'commander';
import type { Config } from '../config.ts';
import type { DnsRecord } from '../contract/identity.ts';
import type { Pool } from '../db/client.ts';
import { makeLookup } from '../identities/lookup.ts';
import { checkDomain, prepareProof } from '../identities/verify.ts';
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
import { print, readValue, requireUser, withSchema } from './database-tool.ts';

const pageSize = 1000;

export function addIdentities(program: Command): void {
  const identities = program.command('identities').description('add, list and verify identities');

  identities
    .command('list')
    .description('list the identities of a user, and how they stand')
    .requiredOption('--user <address or id>', 'whose identities')
    .option('--json', 'print JSON')
    .action((options) =>
      withSchema(async (sql) => {
        const found = await listAllIdentities(sql, await requireUser(sql, options.user));
        print(options, found, table(found.map(({ id, kind, status, value }) => [id, kind, status, value])));
      }),
    );

  identities
    .command('add')
    .description('connect an address or a domain, and show what must stand in DNS')
    .requiredOption('--user <address or id>', 'whose it is to be')
    .requiredOption('--value <value>', 'such as sales@example.com or example.com', readValue)
    .option('--incoming', 'take the mail of all addresses of the domain', false)
    .option('--json', 'print JSON')
    .action((options) =>
      withSchema(async (sql, _log, config) => {
        const made = await addIdentity(sql, config, await requireUser(sql, options.user), options);
        const isDomain = made.kind === 'domain';
        print(options, made, isDomain ? describeStanding(made, made) : `${made.value} is ${made.status}`);
      }),
    );

  identities
    .command('verify')
    .description('look at its DNS records now')
    .argument('<identity>', 'its value or its id')
    .requiredOption('--user <address or id>', 'whose it is')
    .option('--json', 'print JSON')
    .action((given, options) =>
      withSchema(async (sql, log, config) => {
        const found = await findOwnIdentity(sql, await requireUser(sql, options.user), given);
        const { identity, domain } = await verifyIdentity(sql, log, config, found);
        print(options, identity, describeStanding(identity, domain));
      }),
    );

  identities
    .command('dns')
    .description('show what must stand in DNS, what was found at the last look, and what to change')
    .argument('<identity>', 'its value or its id')
    .requiredOption('--user <address or id>', 'whose it is')
    .option('--json', 'print JSON')
    .action((given, options) =>
      withSchema(async (sql) => {
        const identity = await findOwnIdentity(sql, await requireUser(sql, options.user), given);
        const domain = await findProof(sql, identity);
        print(options, readRecordsOf(domain), describeStanding(identity, domain));
      }),
    );
}

/** The newest first. */
async function listAllIdentities(sql: Pool, { userId }: User): Promise<Identity[]> {
  const all: Identity[] = [];
  let page = await listIdentities(sql, userId, {}, { limit: pageSize, after: null });
  for (;;) {
    all.push(...page.rows.map(({ position, ...identity }) => identity));
    if (!page.next) return all;
    page = await listIdentities(sql, userId, {}, { limit: pageSize, after: page.next });
  }
}

async function addIdentity(
  sql: Pool,
  config: Config,
  { userId, email }: User,
  given: { value: AddressOrDomain; incoming: boolean },
): Promise<Identity> {
  const { kind, value, key, domain } = given.value;
  if (kind === 'email' && given.incoming)
    throw new OperatorError('--incoming is for a domain: an address takes its own mail anyway.');
  const id = newId();
  const proven = { id, ownerId: userId, domain, incomingDomain: given.incoming };
  const sealer = await openSealer(sql, loadSecretKeys(config));
  const made = await createIdentity(sql, userId, {
    ...{ id, kind, value, valueKey: key, domain, incomingDomain: given.incoming },
    ...{ providerId: null, smtpAccountId: null, meta: '{}' },
    proof: kind === 'domain' ? await prepareProof(config, sealer, proven) : null,
  });
  if (made) return made;
  throw new OperatorError(
    `${email} has ${value} already. See how it stands: posthorn identities dns ${value} --user ${email}`,
  );
}

/** By its value or its id. */
async function findOwnIdentity(sql: Pool, { userId, email }: User, given: string): Promise<Identity> {
  const id = isUuid(given) ? given : await findIdByValue(sql, userId, given);
  const found = id && (await findIdentity(sql, userId, id));
  if (found) return found;
  throw new OperatorError(
    `${email} has no identity ${given}. List them: posthorn identities list --user ${email}`,
  );
}

async function findIdByValue(sql: Pool, userId: string, given: string): Promise<string | undefined> {
  const read = readAddressOrDomain(given);
  if ('fault' in read) return undefined;
  const filter = { kind: read.kind, valueKey: read.key };
  const { rows } = await listIdentities(sql, userId, filter, { limit: 1, after: null });
  return rows[0]?.id;
}

/** Looks at DNS now. Answers the identity as it stands after that, and the domain behind it, whose records they are. */
async function verifyIdentity(
  sql: Pool,
  log: Log,
  config: Config,
  identity: Identity,
): Promise<{ identity: Identity; domain: Identity }> {
  const { owner_id: ownerId, id, value } = identity;
  const toCheck = await findDomainIdentity(sql, ownerId, identity.domain_identity_id ?? id);
  if (!toCheck) throw new OperatorError(describeDomainNeeded(value));
  const sealer = await openSealer(sql, loadSecretKeys(config));
  const parts = { sql, sealer, log, mailHost: config.mailHost, lookup: makeLookup(config) };
  await checkDomain(parts, toCheck, { asked: true, signal: new AbortController().signal });
  const [checked, domain] = await Promise.all([
    findIdentity(sql, ownerId, id),
    findIdentity(sql, ownerId, toCheck.id),
  ]);
  if (!checked || !domain) throw new OperatorError(`${value} was deleted meanwhile.`);
  return { identity: checked, domain };
}

/** The identity whose records prove it: itself, or the domain of an address. */
async function findProof(sql: Pool, identity: Identity): Promise<Identity> {
  if (identity.kind === 'domain') return identity;
  const { owner_id: ownerId, domain_identity_id: domainId, value } = identity;
  const domain = domainId === null ? undefined : await findIdentity(sql, ownerId, domainId);
  if (!domain) throw new OperatorError(describeDomainNeeded(value));
  return domain;
}

function describeDomainNeeded(address: string): string {
  const domain = address.slice(address.lastIndexOf('@') + 1);
  return `An address is verified through its domain. Add it: posthorn identities add --value ${domain} --user …`;
}

function readRecordsOf({ dns_records: text }: Identity): DnsRecord[] {
  return JSON.parse(text) ?? [];
}

const marks = { valid: '✓', missing: '✗', mismatch: '✗', unknown: '?' } as const;

/** A line for each record, and under it what to publish, what was found and what to change. */
function describeStanding(identity: Identity, domain: Identity): string {
  const records = readRecordsOf(domain);
  const heads = records.map(({ status, purpose, required, type, name }) => [
    `${marks[status]} ${purpose}`,
    required ? 'required' : 'advised',
    status,
    type,
    name,
  ]);
  const lines = table(heads).split('\n');
  const blocks = records.map((record, index) => [lines[index], ...describeRecord(record)].join('\n'));
  const through = identity.id === domain.id ? '' : `, as ${domain.value} is`;
  const none = 'Nobody has looked yet which records it needs. Look now: posthorn identities verify';
  return [
    `${identity.value} is ${identity.status}${through}`,
    ...(records.length > 0 ? blocks : [none]),
  ].join('\n\n');
}

function describeRecord({
  priority,
  value,
  checkedAt,
  status,
  found,
  note,
  graceUntil,
}: DnsRecord): string[] {
  const nothing = status === 'unknown' ? 'not known' : 'nothing';
  const row = (title: string, text: string) => `    ${title.padEnd(8)} ${text}`;
  return [
    row('value', priority === undefined ? value : `${priority} ${value}`),
    ...(found.length > 0 ? found : [checkedAt ? nothing : 'not looked at yet']).map((text, index) =>
      row(index === 0 ? 'found' : '', text),
    ),
    ...(note === undefined ? [] : [row('change', note)]),
    ...(graceUntil === undefined ? [] : [row('until', graceUntil)]),
  ];
}
