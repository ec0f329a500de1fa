/** Mail accounts elsewhere, and connecting another: the servers of well-known services are filled in. */
import { useSignal, useSignalEffect } from '@preact/signals';
import { findMailService, mailServices } from '../mail-services.ts';
import { useAction, usePage } from '../page.ts';
import { Disclosure, Form, SelectField, TextField } from '../parts/form.tsx';
import { ListTable, useListed } from '../parts/list.tsx';
import { Badge, Link, Title } from '../parts/show.tsx';
import { navigate } from '../route.ts';
import { AccountFields, useAccountFields } from './account-fields.tsx';

export function Accounts() {
  const { api } = usePage();
  const listing = useListed((cursor) => api.listAccounts({ cursor }));
  return (
    <>
      <Title>Accounts</Title>
      <p class="lead">
        Mailboxes that you have elsewhere, such as at Gmail or your hoster. Identities send through them and
        receive what arrives there.
      </p>
      <Disclosure label="Connect an account">{() => <NewAccount />}</Disclosure>
      <ListTable
        listing={listing}
        head={['Account', 'Servers', 'Sending', 'Receiving']}
        empty="None yet. An account lets Posthorn use a mailbox that you already have."
      >
        {({ id, label, smtp, imap, send, receive }) => (
          <tr key={id}>
            <td>
              <Link to={`accounts/${id}`}>{label}</Link>
            </td>
            <td>
              {smtp.host}
              {imap && imap.host !== smtp.host && `, ${imap.host}`}
            </td>
            <td>
              <Badge state={send.state} />
            </td>
            <td>{imap ? <Badge state={receive.state} /> : 'no'}</td>
          </tr>
        )}
      </ListTable>
    </>
  );
}

const other = 'other';

function NewAccount() {
  const { api } = usePage();
  const address = useSignal('');
  const chosen = useSignal(other);
  const given = useAccountFields();
  const service = mailServices.find(({ name }) => name === chosen.value);
  const action = useAction(async () => {
    const made = await api.createAccount({ ...given.read(), label: address.value.trim() });
    // The page of the account shows what is wrong, and can verify again.
    await api.verifyAccount(made.id).catch(() => {});
    navigate(`accounts/${made.id}`);
  });

  useSignalEffect(() => {
    const typed = address.value.trim();
    const found = findMailService(typed);
    if (found) chosen.value = found.name;
    given.smtp.username.value = typed;
    given.imap.username.value = found?.hasShortImapName ? typed.slice(0, typed.lastIndexOf('@')) : typed;
  });
  useSignalEffect(() => {
    const service = mailServices.find(({ name }) => name === chosen.value);
    if (service) given.fill(service);
  });

  return (
    <Form action={action} submit="Connect">
      <div class="pair">
        <TextField label="Address" name="label" type="email" value={address} placeholder="ada@gmail.com" />
        <SelectField
          label="Service"
          name="service"
          value={chosen}
          options={[...mailServices.map(({ name }) => [name, name] as const), [other, 'Another service']]}
          hint="Fills in the servers. For a domain of your own, choose who hosts its mail."
        />
      </div>
      <AccountFields given={given} service={service} />
    </Form>
  );
}
