/** The fields of a webhook, for creating one and for changing one. */
import { type Signal, useSignal } from '@preact/signals';
import type { Identity, Webhook } from '../contract.ts';
import { SelectField, TextField, useFaults } from '../parts/form.tsx';

export const eventNames = [
  'message.received',
  'message.sent',
  'message.delivered',
  'message.bounced',
  'message.complained',
] as const;

export function useWebhookFields(webhook?: Webhook) {
  const url = useSignal(webhook?.url ?? '');
  const events = useSignal<readonly string[]>(webhook?.events ?? ['message.received']);
  const identityId = useSignal(webhook?.identityId ?? '');
  const description = useSignal(webhook?.description ?? '');
  const read = () => ({
    url: url.value.trim(),
    events: events.value,
    identityId: identityId.value || null,
    description: description.value || null,
  });
  return { url, events, identityId, description, read };
}

export function WebhookFields({
  given,
  identities,
}: {
  given: ReturnType<typeof useWebhookFields>;
  identities: readonly Identity[];
}) {
  return (
    <>
      <TextField
        label="URL"
        name="url"
        type="url"
        value={given.url}
        placeholder="https://example.com/hooks"
      />
      <EventChoice chosen={given.events} />
      <div class="pair">
        <SelectField
          label="Identity"
          name="identityId"
          value={given.identityId}
          options={[['', 'All identities'], ...identities.map(({ id, value }) => [id, value] as const)]}
        />
        <TextField label="Description" name="description" value={given.description} />
      </div>
    </>
  );
}

function EventChoice({ chosen }: { chosen: Signal<readonly string[]> }) {
  const faults = useFaults('events');
  const toggle = (name: string) => {
    chosen.value = chosen.value.includes(name)
      ? chosen.value.filter((other) => other !== name)
      : [...chosen.value, name];
  };
  return (
    <fieldset name="events">
      <legend>Events</legend>
      {eventNames.map((name) => (
        <label key={name} class="check">
          <input type="checkbox" checked={chosen.value.includes(name)} onChange={() => toggle(name)} />
          {name}
        </label>
      ))}
      {faults.length > 0 && (
        <p class="fault" role="alert">
          {faults.map(({ message }) => message).join(' ')}
        </p>
      )}
    </fieldset>
  );
}
