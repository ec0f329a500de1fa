/** The webhooks, and creating another. */
import { useSignal } from '@preact/signals';
import type { CreatedWebhook } from '../contract.ts';
import { useAction, useLoaded, usePage } from '../page.ts';
import { Disclosure, Form } from '../parts/form.tsx';
import { ListTable, useListed } from '../parts/list.tsx';
import { Badge, CodeBlock, Link, Title } from '../parts/show.tsx';
import { useWebhookFields, WebhookFields } from './webhook-fields.tsx';

export function Webhooks() {
  const { api } = usePage();
  const listing = useListed((cursor) => api.listWebhooks({ cursor }));
  const made = useSignal<CreatedWebhook | null>(null);
  return (
    <>
      <Title>Webhooks</Title>
      <p class="lead">
        Where events are POSTed as soon as they happen, signed, and tried again until they arrive.
      </p>
      <Disclosure label="Create a webhook">
        {(close) => (
          <NewWebhook
            created={async (webhook) => {
              made.value = webhook;
              close();
              await listing.reload();
            }}
          />
        )}
      </Disclosure>
      {made.value && (
        <div class="note good stack" role="status">
          <p>
            <strong>Created.</strong> Your backend verifies the signature of each event with this secret:
          </p>
          <CodeBlock what="the secret of the new webhook" text={made.value.secret} />
          <p>
            <Link to={`webhooks/${made.value.id}`}>Send a test event</Link>
          </p>
        </div>
      )}
      <ListTable
        listing={listing}
        head={['URL', 'Events', 'State']}
        empty="None yet. Events are kept: a new webhook can replay them."
      >
        {({ id, url, events, enabled, disabledReason, description }) => (
          <tr key={id}>
            <td>
              <Link to={`webhooks/${id}`}>{url}</Link>
              {description && (
                <>
                  <br />
                  <small>{description}</small>
                </>
              )}
            </td>
            <td>{events.join(', ')}</td>
            <td>
              <Badge
                state={enabled ? 'on' : 'off'}
                tone={enabled ? 'good' : disabledReason ? 'bad' : 'calm'}
              />
            </td>
          </tr>
        )}
      </ListTable>
    </>
  );
}

function NewWebhook({ created }: { created(webhook: CreatedWebhook): Promise<void> }) {
  const { api, userId } = usePage();
  const identities = useLoaded(() => api.listIdentities());
  const given = useWebhookFields();
  const action = useAction(async () => {
    await created(await api.createWebhook({ ...given.read(), ownerId: userId }));
  });
  return (
    <Form action={action} submit="Create the webhook">
      <WebhookFields given={given} identities={identities.value.value?.items ?? []} />
    </Form>
  );
}
