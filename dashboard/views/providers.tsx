/** The providers, and connecting another with the credentials that its kind needs. */
import { type Signal, signal, useSignal } from '@preact/signals';
import { useMemo } from 'preact/hooks';
import type { Provider } from '../contract.ts';
import { useAction, usePage } from '../page.ts';
import { Disclosure, Form, SelectField, TextField } from '../parts/form.tsx';
import { ListTable, useListed } from '../parts/list.tsx';
import { Badge, Link, Title } from '../parts/show.tsx';
import { type CredentialField, providerKinds } from '../provider-kinds.ts';
import { navigate } from '../route.ts';

type Kind = Provider['kind'];

export function Providers() {
  const { api } = usePage();
  const listing = useListed((cursor) => api.listProviders({ cursor }));
  return (
    <>
      <Title>Providers</Title>
      <p class="lead">
        Services that send and receive mail for your identities: Amazon SES, Mailgun, Postmark, SendGrid.
      </p>
      <Disclosure label="Connect a provider">{() => <NewProvider />}</Disclosure>
      <ListTable
        listing={listing}
        head={['Provider', 'Kind', 'Sending']}
        empty="None yet. Without a provider, Posthorn sends and receives by itself."
      >
        {(provider) => (
          <tr key={provider.id}>
            <td>
              <Link to={`providers/${provider.id}`}>{nameOf(provider)}</Link>
            </td>
            <td>{providerKinds[provider.kind].name}</td>
            <td>
              <Badge state={provider.send.state} />
            </td>
          </tr>
        )}
      </ListTable>
    </>
  );
}

export function nameOf({ name, kind }: Provider): string {
  return name ?? providerKinds[kind].name;
}

const kinds = Object.entries(providerKinds).map(([kind, { name }]) => [kind, name] as const);

function NewProvider() {
  const { api } = usePage();
  const kind = useSignal<string>('postmark');
  const name = useSignal('');
  const { fields } = providerKinds[kind.value as Kind];
  const values = useMemo(
    () => new Map(fields.map((field) => [field.name, signal(field.options?.[0]?.[0] ?? '')])),
    [fields],
  );
  const action = useAction(async () => {
    const made = await api.createProvider({
      kind: kind.value,
      name: name.value || null,
      credentials: readCredentials(fields, values),
    });
    navigate(`providers/${made.id}`);
  });
  return (
    <Form action={action} submit="Connect">
      <div class="pair">
        <SelectField label="Provider" name="kind" value={kind} options={kinds} />
        <TextField label="Name" name="name" value={name} hint="For you. May be empty." />
      </div>
      <div class="pair">
        {fields.map((field) => (
          <CredentialInput
            key={kind.value + field.name}
            field={field}
            value={values.get(field.name) ?? name}
          />
        ))}
      </div>
    </Form>
  );
}

function CredentialInput({ field, value }: { field: CredentialField; value: Signal<string> }) {
  const { label, hint, options, placeholder, isSecret } = field;
  const shared = { label, hint, value, name: `credentials/${faultName(field)}` };
  if (options) return <SelectField {...shared} options={options} />;
  return (
    <TextField
      {...shared}
      {...(placeholder ? { placeholder } : {})}
      type={isSecret ? 'password' : 'text'}
      autocomplete={isSecret ? 'new-password' : 'off'}
    />
  );
}

/** The API names only `basicAuth`, whatever is wrong inside. */
function faultName({ name }: CredentialField): string {
  return name.split('/')[0] ?? name;
}

/** `basicAuth/username` becomes `{basicAuth: {username}}`. */
function readCredentials(
  fields: readonly CredentialField[],
  values: ReadonlyMap<string, Signal<string>>,
): Record<string, unknown> {
  const read: Record<string, unknown> = {};
  for (const { name, isOptional } of fields) {
    const text = values.get(name)?.value.trim() ?? '';
    if (text === '' && isOptional) continue;
    const [outer = name, inner] = name.split('/');
    read[outer] = inner ? { ...(read[outer] as object), [inner]: text } : text;
  }
  return read;
}
