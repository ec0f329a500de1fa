/** Addresses that get no mail: they bounced, complained, or were added by hand. */
import { useSignal } from '@preact/signals';
import { useAction, usePage } from '../page.ts';
import { DangerButton, Disclosure, Form, TextField } from '../parts/form.tsx';
import { ListTable, useListed } from '../parts/list.tsx';
import { Badge, Link, Title, When } from '../parts/show.tsx';

export function Suppressions() {
  const { api } = usePage();
  const listing = useListed((cursor) => api.listSuppressions({ cursor }));
  const remove = async (address: string) => {
    await api.deleteSuppression(address);
    await listing.reload();
  };
  return (
    <>
      <Title>Suppressions</Title>
      <p class="lead">
        Posthorn sends no mail to these addresses: mail to them bounced, they complained, or you added them.
      </p>
      <Disclosure label="Suppress an address">
        {(close) => (
          <NewSuppression
            created={async () => {
              close();
              await listing.reload();
            }}
          />
        )}
      </Disclosure>
      <ListTable
        listing={listing}
        head={['Address', 'Reason', 'Since', '']}
        empty="None. Every address gets its mail."
      >
        {({ address, reason, messageId, createdAt }) => (
          <tr key={address}>
            <td>{address}</td>
            <td>
              <Badge state={reason} tone={reason === 'manual' ? 'calm' : 'bad'} />{' '}
              {messageId && <Link to={`messages/${messageId}`}>the message</Link>}
            </td>
            <td>
              <When at={createdAt} />
            </td>
            <td>
              <div class="actions">
                <DangerButton
                  label="Remove"
                  question={`Send mail to ${address} again?`}
                  act={() => remove(address)}
                />
              </div>
            </td>
          </tr>
        )}
      </ListTable>
    </>
  );
}

function NewSuppression({ created }: { created(): Promise<void> }) {
  const { api } = usePage();
  const address = useSignal('');
  const action = useAction(async () => {
    await api.createSuppression({ address: address.value.trim() });
    await created();
  });
  return (
    <Form action={action} submit="Suppress">
      <TextField label="Address" name="address" type="email" value={address} />
    </Form>
  );
}
