/** One mail account: whether its servers accept the login, its settings, and the identities that use it. */
import { useSignal } from '@preact/signals';
import type { Identity, SmtpAccount } from '../contract.ts';
import { useAction, useLoaded, usePage, useRepeated } from '../page.ts';
import { ActionButton, DangerButton, Disclosure, Form, TextField } from '../parts/form.tsx';
import { ServerState } from '../parts/server-state.tsx';
import { Badge, Link, Loading, ProblemNote, Title } from '../parts/show.tsx';
import { navigate } from '../route.ts';
import { AccountFields, useAccountFields } from './account-fields.tsx';

/** Sending and receiving change the state; this is how often the page asks. */
const lookMs = 5000;

export function AccountView({ id }: { id: string }) {
  const { api } = usePage();
  const { value, problem, reload } = useLoaded(() => api.getAccount(id), [id]);
  useRepeated(lookMs, reload);
  const account = value.value;
  if (!account) {
    return (
      <>
        <Title>Account</Title>
        {problem.value ? <ProblemNote problem={problem.value} /> : <Loading />}
      </>
    );
  }
  const verify = async () => {
    value.value = await api.verifyAccount(id);
  };
  const remove = async () => {
    await api.deleteAccount(id);
    navigate('accounts');
  };
  return (
    <>
      <Link to="accounts" class="back">
        ← Accounts
      </Link>
      <Title
        actions={
          <DangerButton
            label="Remove"
            question={`Remove the account ${account.label}? Posthorn forgets its login. This cannot be undone.`}
            act={remove}
          />
        }
      >
        {account.label}
      </Title>
      <section class="stack" aria-label="State">
        <div class="stack" role="status">
          <ServerState name={`Sending through ${account.smtp.host}`} state={account.send} />
          {account.imap ? (
            <ServerState name={`Receiving from ${account.imap.host}`} state={account.receive} />
          ) : (
            <p class="soft">The account only sends. To receive, change it and add IMAP.</p>
          )}
        </div>
        <div class="actions">
          <ActionButton act={verify} kind="main">
            Verify now
          </ActionButton>
          <Disclosure label="Change" kind="">
            {(close) => (
              <Change
                account={account}
                changed={(changed) => {
                  value.value = changed;
                  close();
                }}
              />
            )}
          </Disclosure>
        </div>
      </section>
      <Users account={account} />
    </>
  );
}

function Change({ account, changed }: { account: SmtpAccount; changed(account: SmtpAccount): void }) {
  const { api } = usePage();
  const given = useAccountFields(account);
  const action = useAction(async () => changed(await api.updateAccount(account.id, given.read())));
  return (
    <Form action={action} submit="Save">
      <TextField label="Label" name="label" value={given.label} />
      <AccountFields given={given} />
    </Form>
  );
}

/** The identities that use the account, and connecting another. */
function Users({ account }: { account: SmtpAccount }) {
  const { api } = usePage();
  const { value, problem, reload } = useLoaded(() => api.listIdentities(), [account.id]);
  const users = value.value?.items.filter(({ smtp_account_id }) => smtp_account_id === account.id) ?? [];
  return (
    <section class="card" aria-labelledby="users">
      <h2 id="users">Identities</h2>
      <p class="soft">
        {account.imap
          ? 'The mail of the address goes out through this account, and what arrives in its mailbox comes here. An account with IMAP is for one address.'
          : 'The mail of these identities goes out through this account.'}
      </p>
      <ProblemNote problem={problem.value} />
      {users.length > 0 && (
        <ul class="plainlist">
          {users.map((identity) => (
            <User key={identity.id} identity={identity} changed={reload} />
          ))}
        </ul>
      )}
      {value.value && <Connect account={account} isFirst={users.length === 0} changed={reload} />}
    </section>
  );
}

function User({ identity, changed }: { identity: Identity; changed(): Promise<void> }) {
  const { api } = usePage();
  const release = async () => {
    await api.updateIdentity(identity.id, { smtp_account_id: null });
    await changed();
  };
  return (
    <li class="actions">
      <Link to={`identities/${identity.id}`}>{identity.value}</Link>
      <Badge state={identity.status} />
      <ActionButton act={release}>Disconnect</ActionButton>
    </li>
  );
}

interface ConnectProps {
  account: SmtpAccount;
  isFirst: boolean;
  changed(): Promise<void>;
}

function Connect({ account, isFirst, changed }: ConnectProps) {
  const { api } = usePage();
  const { username } = account.smtp;
  const address = useSignal(isFirst && username.includes('@') ? username : '');
  const action = useAction(async () => {
    const value = address.value.trim();
    const known = value ? (await api.listIdentities({ value })).items[0] : undefined;
    const smtp_account_id = account.id;
    if (known) await api.updateIdentity(known.id, { smtp_account_id });
    else await api.createIdentity({ value, smtp_account_id });
    address.value = '';
    await changed();
  });
  return (
    <Form action={action} submit="Use it for this identity">
      <TextField
        label="Address or domain"
        name="value"
        value={address}
        placeholder="sales@example.com"
        hint="If it is not an identity yet, it becomes one."
      />
    </Form>
  );
}
