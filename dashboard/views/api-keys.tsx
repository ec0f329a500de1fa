/** Who may act for the user: API keys (a new key is shown once) and browsers. */
import { useSignal } from '@preact/signals';
import type { CreatedApiKey } from '../contract.ts';
import { useAction, usePage } from '../page.ts';
import { DangerButton, Disclosure, Form, SelectField, TextField } from '../parts/form.tsx';
import { ListTable, useListed } from '../parts/list.tsx';
import { Badge, CodeBlock, Title, When } from '../parts/show.tsx';
import { Sessions } from './sessions.tsx';

export function ApiKeys() {
  const { api } = usePage();
  const listing = useListed((cursor) => api.listApiKeys({ cursor }));
  const made = useSignal<CreatedApiKey | null>(null);
  const remove = async (id: string) => {
    await api.deleteApiKey(id);
    await listing.reload();
  };
  return (
    <>
      <Title>API keys</Title>
      <p class="lead">Programs use them. Each can do only what its scope says.</p>
      <Disclosure label="Create an API key">
        {(close) => (
          <NewKey
            created={async (key) => {
              made.value = key;
              close();
              await listing.reload();
            }}
          />
        )}
      </Disclosure>
      {made.value && (
        <div class="note good stack" role="status">
          <p>
            <strong>Store this key now.</strong> It is not shown again.
          </p>
          <CodeBlock what="the new API key" text={made.value.apiKey} />
        </div>
      )}
      <ListTable
        listing={listing}
        head={['Name', 'Key', 'Scope', 'Last used', 'Expires', '']}
        empty="None. A program needs a key to use the API."
      >
        {({ id, name, prefix, suffix, scope, lastUsedAt, expiresAt }) => (
          <tr key={id}>
            <td>{name ?? <span class="soft">no name</span>}</td>
            <td>
              <code>
                {prefix}…{suffix}
              </code>
            </td>
            <td>
              <Badge state={scope} />
            </td>
            <td>{lastUsedAt ? <When at={lastUsedAt} /> : 'never'}</td>
            <td>{expiresAt ? <When at={expiresAt} /> : 'never'}</td>
            <td>
              <div class="actions">
                <DangerButton
                  label="Revoke"
                  question={`Revoke ${name ?? `${prefix}…${suffix}`}? Programs that use it stop working, and sessions made with it end.`}
                  act={() => remove(id)}
                />
              </div>
            </td>
          </tr>
        )}
      </ListTable>
      <Sessions />
    </>
  );
}

function NewKey({ created }: { created(key: CreatedApiKey): Promise<void> }) {
  const { api } = usePage();
  const name = useSignal('');
  const scope = useSignal('full');
  const expires = useSignal('');
  const action = useAction(async () => {
    const key = await api.createApiKey({
      name: name.value || null,
      scope: scope.value,
      expiresAt: expires.value ? new Date(`${expires.value}T00:00:00Z`).toISOString() : null,
    });
    await created(key);
  });
  return (
    <Form action={action} submit="Create the key">
      <div class="pair">
        <TextField label="Name" name="name" value={name} placeholder="ci" />
        <SelectField
          label="Scope"
          name="scope"
          value={scope}
          options={[
            ['full', 'full: everything'],
            ['send', 'send: only sending mail'],
            ['read', 'read: only reading'],
          ]}
        />
        <TextField label="Expires" name="expiresAt" type="date" value={expires} hint="Empty: never." />
      </div>
    </Form>
  );
}
