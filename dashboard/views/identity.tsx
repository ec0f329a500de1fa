/** One identity: its DNS records or its confirmation by mail, what is wrong, through what its mail travels, and its mailboxes. */
import { useSignal } from '@preact/signals';
import { readRecords } from '../api.ts';
import type { DnsRecord, Identity } from '../contract.ts';
import { useLoaded, usePage, useRepeated } from '../page.ts';
import { ActionButton, DangerButton } from '../parts/form.tsx';
import { Table } from '../parts/list.tsx';
import { Badge, Copy, Link, Loading, ProblemNote, Title, When } from '../parts/show.tsx';
import { navigate } from '../route.ts';
import { describeStatus } from '../words.ts';
import { MailRoute } from './mail-route.tsx';
import { Mailboxes } from './mailboxes.tsx';

/** The service checks DNS by itself, and links are opened elsewhere; this is how often the page asks whether something changed. */
const lookMs = 3000;

export function IdentityView({ id }: { id: string }) {
  const { api } = usePage();
  const { value, problem, reload } = useLoaded(() => api.getIdentity(id), [id]);
  const identity = value.value;
  useRepeated(
    identity && (identity.kind === 'domain' || identity.status !== 'verified') ? lookMs : null,
    reload,
  );
  if (!identity) {
    return (
      <>
        <Title>Identity</Title>
        {problem.value ? <ProblemNote problem={problem.value} /> : <Loading />}
      </>
    );
  }
  const verify = async () => {
    value.value = await api.verifyIdentity(id);
  };
  const remove = async () => {
    await api.deleteIdentity(id);
    navigate('identities');
  };
  const records = readRecords(identity);
  return (
    <>
      <Link to="identities" class="back">
        ← Identities
      </Link>
      <Title
        actions={
          <DangerButton
            label="Delete"
            question={`Delete ${identity.value} with all its messages and the webhooks that are only for it? This cannot be undone.`}
            act={remove}
          />
        }
      >
        {identity.value}
      </Title>
      <div class="actions" role="status">
        <Badge state={identity.status} />
        <span class="soft">{describeStatus(identity)}</span>
      </div>
      {identity.domain_identity_id && (
        <p>
          <Link to={`identities/${identity.domain_identity_id}`}>Its domain</Link> is an identity, too.
        </p>
      )}
      {identity.kind === 'email' && identity.status !== 'verified' && (
        <Confirmation identity={identity} verify={verify} />
      )}
      {identity.kind === 'domain' && <CatchAll identity={identity} changed={reload} />}
      {records.length > 0 && (
        <section class="stack" aria-labelledby="records">
          <div class="title">
            <h2 id="records">DNS records</h2>
            <div class="actions">
              <ActionButton act={verify} kind="main">
                Verify now
              </ActionButton>
            </div>
          </div>
          <p class="soft">Publish these records where the domain is managed. This table changes by itself.</p>
          <Records records={records} />
        </section>
      )}
      <MailRoute identity={identity} changed={reload} />
      {identity.kind === 'email' && <Mailboxes key={identity.smtp_account_id} identityId={id} />}
    </>
  );
}

function Confirmation({ identity, verify }: { identity: Identity; verify(): Promise<void> }) {
  const isSent = identity.status === 'pending';
  return (
    <div class="card">
      <p>
        {identity.smtp_account_id || identity.provider_id
          ? 'Mail through its account or provider needs no confirmation. For mail that reaches Posthorn directly, prove that the address is yours.'
          : 'Prove that the address is yours: Posthorn sends a mail with a link to it.'}
      </p>
      <ActionButton act={verify} kind={isSent ? '' : 'main'}>
        {isSent ? 'Send another confirmation mail' : 'Confirm by mail'}
      </ActionButton>
    </div>
  );
}

function CatchAll({ identity, changed }: { identity: Identity; changed(): Promise<void> }) {
  const { api } = usePage();
  const isOn = identity.incoming_domain;
  const toggle = async () => {
    await api.updateIdentity(identity.id, { incoming_domain: !isOn });
    await changed();
  };
  return (
    <div class="actions">
      <span>
        {isOn
          ? 'Mail to every address of the domain is received.'
          : 'Only addresses with an identity of their own receive mail.'}
      </span>
      <ActionButton act={toggle}>
        {isOn ? 'Receive only for identities' : 'Receive for every address'}
      </ActionButton>
    </div>
  );
}

function Records({ records }: { records: DnsRecord[] }) {
  return (
    <Table kind="records" head={['Record', 'Name', 'Value', 'State']}>
      {records.map((record) => (
        <RecordRow key={record.purpose + record.name} record={record} />
      ))}
    </Table>
  );
}

function RecordRow({ record }: { record: DnsRecord }) {
  const { type, name, value, purpose, required, status, note, found, priority, checkedAt, graceUntil } =
    record;
  const isFoundShown = useSignal(false);
  return (
    <tr>
      <td>
        <strong>{type}</strong>
        <br />
        <small>
          {purposes[purpose]}, {required ? 'required' : 'recommended'}
        </small>
      </td>
      <td>
        <div class="value">
          <code>{name}</code>
          <Copy text={name} what={`the name of the ${purposes[purpose]} record`} />
        </div>
      </td>
      <td>
        <div class="value">
          <code>
            {priority === undefined ? '' : `${priority} `}
            {value}
          </code>
          <Copy text={value} what={`the value of the ${purposes[purpose]} record`} />
        </div>
        {note && <p class={status === 'unknown' ? 'hint' : 'fault'}>{note}</p>}
        {graceUntil && (
          <p class="fault">
            The identity stays verified until <When at={graceUntil} />.
          </p>
        )}
        {found.length > 0 && status !== 'valid' && (
          <p class="hint">
            <button
              type="button"
              class="plain"
              aria-expanded={isFoundShown.value}
              onClick={() => {
                isFoundShown.value = !isFoundShown.value;
              }}
            >
              What DNS has now
            </button>{' '}
            {isFoundShown.value && <code>{found.join(' · ')}</code>}
          </p>
        )}
      </td>
      <td>
        <Badge state={status} />
        {checkedAt && (
          <>
            <br />
            <small>
              checked <When at={checkedAt} />
            </small>
          </>
        )}
      </td>
    </tr>
  );
}

const purposes: Record<DnsRecord['purpose'], string> = {
  ownership: 'ownership',
  mx: 'mail host',
  spf: 'SPF',
  dkim: 'DKIM',
  dmarc: 'DMARC',
};
