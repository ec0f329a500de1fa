/** Through what the mail of an identity comes and goes: Posthorn itself, an account elsewhere, or a provider. */
import { useSignal } from '@preact/signals';
import type { Identity, Provider, SmtpAccount } from '../contract.ts';
import { useAction, useLoaded, usePage } from '../page.ts';
import { Form, SelectField } from '../parts/form.tsx';
import { Link, Loading, ProblemNote } from '../parts/show.tsx';
import { nameOf } from './providers.tsx';

export function MailRoute({ identity, changed }: { identity: Identity; changed(): Promise<void> }) {
  const { api } = usePage();
  const { value, problem } = useLoaded(async () => {
    const [accounts, providers] = await Promise.all([api.listAccounts(), api.listProviders()]);
    return { accounts: accounts.items, providers: providers.items };
  });
  const known = value.value;
  const isEmpty = known?.accounts.length === 0 && known.providers.length === 0;
  return (
    <section class="card" aria-labelledby="route">
      <h2 id="route">How its mail travels</h2>
      {problem.value ? <ProblemNote problem={problem.value} /> : !known && <Loading />}
      {isEmpty && (
        <p class="soft">
          Posthorn itself sends and receives its mail. To use a mailbox elsewhere, connect an{' '}
          <Link to="accounts">account</Link> or a <Link to="providers">provider</Link>.
        </p>
      )}
      {known && !isEmpty && <Choice identity={identity} {...known} changed={changed} />}
    </section>
  );
}

interface ChoiceProps {
  identity: Identity;
  accounts: SmtpAccount[];
  providers: Provider[];
  changed(): Promise<void>;
}

function Choice({ identity, accounts, providers, changed }: ChoiceProps) {
  const { api } = usePage();
  const accountId = useSignal(identity.smtp_account_id ?? '');
  const providerId = useSignal(identity.provider_id ?? '');
  const isSaved = useSignal(false);
  const action = useAction(async () => {
    isSaved.value = false;
    await api.updateIdentity(identity.id, {
      smtp_account_id: accountId.value || null,
      provider_id: providerId.value || null,
    });
    isSaved.value = true;
    await changed();
  });
  return (
    <Form action={action} submit="Save">
      <div class="pair">
        <SelectField
          label="Account"
          name="smtp_account_id"
          value={accountId}
          hint="If both are chosen, mail goes out through the account."
          options={[['', 'None'], ...accounts.map(({ id, label }) => [id, label] as const)]}
        />
        <SelectField
          label="Provider"
          name="provider_id"
          value={providerId}
          options={[['', 'None'], ...providers.map((provider) => [provider.id, nameOf(provider)] as const)]}
        />
      </div>
      <p class="soft" role="status">
        {isSaved.value && 'Saved.'}
      </p>
    </Form>
  );
}
