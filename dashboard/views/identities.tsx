/** The addresses and domains that are connected, and connecting another. */
import { useSignal } from '@preact/signals';
import { useAction, usePage } from '../page.ts';
import { CheckField, Disclosure, Form, TextField } from '../parts/form.tsx';
import { ListTable, useListed } from '../parts/list.tsx';
import { Badge, Link, Title, When } from '../parts/show.tsx';
import { navigate } from '../route.ts';

export function Identities() {
  const { api } = usePage();
  const listing = useListed((cursor) => api.listIdentities({ cursor }));
  return (
    <>
      <Title>Identities</Title>
      <p class="lead">The addresses and domains whose mail Posthorn receives and sends.</p>
      <Disclosure label="Connect an address or a domain">{() => <NewIdentity />}</Disclosure>
      <ListTable
        listing={listing}
        head={['Identity', 'Kind', 'State', 'Connected']}
        empty="None yet. Connect an address to receive its mail."
      >
        {(identity) => (
          <tr key={identity.id}>
            <td>
              <Link to={`identities/${identity.id}`}>{identity.value}</Link>
            </td>
            <td>
              {identity.kind === 'domain' ? 'Domain' : 'Address'}
              {identity.incoming_domain && ', every address'}
            </td>
            <td>
              <Badge state={identity.status} />
            </td>
            <td>
              <When at={readSeedTime(identity.created_at)} />
            </td>
          </tr>
        )}
      </ListTable>
    </>
  );
}

function NewIdentity() {
  const { api } = usePage();
  const value = useSignal('');
  const isCatchAll = useSignal(false);
  const action = useAction(async () => {
    const isDomain = !value.value.includes('@');
    const made = await api.createIdentity({
      value: value.value.trim(),
      ...(isDomain && isCatchAll.value ? { incoming_domain: true } : {}),
    });
    navigate(`identities/${made.id}`);
  });
  return (
    <Form action={action} submit="Connect">
      <TextField
        label="Address or domain"
        name="value"
        value={value}
        placeholder="sales@example.com or example.com"
      />
      {value.value !== '' && !value.value.includes('@') && (
        <CheckField label="Receive mail for every address of the domain" value={isCatchAll} />
      )}
    </Form>
  );
}

/** `2026-01-31 12:00:00.123456+00` as ISO 8601. */
function readSeedTime(time: string): string {
  return `${time.slice(0, 10)}T${time.slice(11, 23)}Z`;
}
