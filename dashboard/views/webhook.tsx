/** One webhook: on or off and why, its secret, a test, its settings, a replay, and its deliveries. */
import { useSignal } from '@preact/signals';
import type { Identity, Webhook, WebhookTest } from '../contract.ts';
import { useAction, useLoaded, usePage } from '../page.ts';
import { ActionButton, DangerButton, Disclosure, Form, SelectField } from '../parts/form.tsx';
import { Badge, CodeBlock, Link, Loading, ProblemNote, Title } from '../parts/show.tsx';
import { navigate, verifyingDocs } from '../route.ts';
import { describeAttempt, formatMs } from '../words.ts';
import { DeliveryList } from './deliveries.tsx';
import { Sides } from './delivery-table.tsx';
import { Replay } from './replay.tsx';
import { eventNames, useWebhookFields, WebhookFields } from './webhook-fields.tsx';

export function WebhookView({ id }: { id: string }) {
  const { api } = usePage();
  const { value, problem, reload } = useLoaded(() => api.getWebhook(id), [id]);
  const identities = useLoaded(() => api.listIdentities());
  const replayed = useSignal(0);
  const webhook = value.value;
  if (!webhook) {
    return (
      <>
        <Title>Webhook</Title>
        {problem.value ? <ProblemNote problem={problem.value} /> : <Loading />}
      </>
    );
  }
  const remove = async () => {
    await api.deleteWebhook(id);
    navigate('webhooks');
  };
  const known = identities.value.value?.items ?? [];
  return (
    <>
      <Link to="webhooks" class="back">
        ← Webhooks
      </Link>
      <Title
        actions={
          <DangerButton
            label="Delete"
            question="Delete this webhook and its deliveries? Its events are kept. This cannot be undone."
            act={remove}
          />
        }
      >
        {webhook.url}
      </Title>
      <p class="lead">
        Gets {webhook.events.join(', ')} of {scopeOf(webhook, known)}.
        {webhook.description && ` ${webhook.description}`}
      </p>
      <div class="actions">
        <OnOff webhook={webhook} reload={reload} />
        <Disclosure label="Change" kind="">
          {(close) => (
            <Change
              webhook={webhook}
              identities={known}
              changed={async () => {
                close();
                await reload();
              }}
            />
          )}
        </Disclosure>
      </div>
      <div class="columns">
        <Test id={id} />
        <Secret id={id} />
      </div>
      <Replay
        id={id}
        progressed={() => {
          replayed.value += 1;
        }}
      />
      <section class="stack" aria-labelledby="deliveries">
        <h2 id="deliveries">Deliveries</h2>
        <DeliveryList webhookId={id} version={replayed.value} />
      </section>
    </>
  );
}

function scopeOf({ identityId }: Webhook, identities: readonly Identity[]): string {
  if (identityId === null) return 'all identities';
  return identities.find(({ id }) => id === identityId)?.value ?? 'one identity';
}

function OnOff({ webhook, reload }: { webhook: Webhook; reload(): Promise<void> }) {
  const { api } = usePage();
  const { id, enabled, disabledReason } = webhook;
  const toggle = async () => {
    await api.updateWebhook(id, { enabled: !enabled });
    await reload();
  };
  return (
    <>
      <span role="status">
        <Badge state={enabled ? 'on' : 'off'} tone={enabled ? 'good' : disabledReason ? 'bad' : 'calm'} />{' '}
        {disabledReason === 'gone' && 'Its URL answered 410 (gone), so Posthorn switched it off.'}
        {disabledReason === 'failing' && 'It failed for five days, so Posthorn switched it off.'}
      </span>
      <ActionButton act={toggle}>{enabled ? 'Switch off' : 'Switch on'}</ActionButton>
    </>
  );
}

function Change({
  webhook,
  identities,
  changed,
}: {
  webhook: Webhook;
  identities: readonly Identity[];
  changed(): Promise<void>;
}) {
  const { api } = usePage();
  const given = useWebhookFields(webhook);
  const action = useAction(async () => {
    await api.updateWebhook(webhook.id, given.read());
    await changed();
  });
  return (
    <Form action={action} submit="Save">
      <WebhookFields given={given} identities={identities} />
    </Form>
  );
}

function Secret({ id }: { id: string }) {
  const { api } = usePage();
  const secret = useSignal<string | null>(null);
  const show = async () => {
    secret.value = (await api.getSecret(id)).secret;
  };
  const rotate = async () => {
    secret.value = (await api.rotateSecret(id)).secret;
  };
  return (
    <section class="card" aria-labelledby="secret">
      <h2 id="secret">Secret</h2>
      <p class="soft">
        It signs every delivery, so that your backend can tell ours from others:{' '}
        <a href={verifyingDocs}>how to verify a signature</a>.
      </p>
      {secret.value && <CodeBlock what="the secret" text={secret.value} />}
      <div class="actions">
        {!secret.value && <ActionButton act={show}>Show the secret</ActionButton>}
        <DangerButton
          label="Rotate"
          question="Make a new secret? For 24 hours deliveries are signed with the old and the new secret."
          act={rotate}
        />
      </div>
    </section>
  );
}

function Test({ id }: { id: string }) {
  const { api } = usePage();
  const event = useSignal<string>('message.received');
  const result = useSignal<WebhookTest | null>(null);
  const action = useAction(async () => {
    result.value = null;
    result.value = await api.testWebhook(id, event.value);
  });
  return (
    <section class="card" aria-labelledby="test">
      <h2 id="test">Test</h2>
      <Form action={action} submit="Send a test event">
        <SelectField
          label="Sample of"
          name="event"
          value={event}
          options={eventNames.map((name) => [name, name])}
        />
      </Form>
      {result.value && (
        <div role="status">
          <p>
            <Badge
              state={result.value.delivered ? 'delivered' : 'failed'}
              tone={result.value.delivered ? 'good' : 'bad'}
            />{' '}
            {describeAttempt(result.value.attempt)} in {formatMs(result.value.attempt.durationMs)}
          </p>
          <Sides
            request={`{"event":"${event.value}","data":{"test":true,…}}`}
            attempt={result.value.attempt}
          />
        </div>
      )}
    </section>
  );
}
