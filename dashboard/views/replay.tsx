/** Sending the events of a period to a webhook again, with the progress. */
import { useSignal } from '@preact/signals';
import type { Replay as ReplayState } from '../contract.ts';
import { useAction, usePage, useRepeated } from '../page.ts';
import { Form, SelectField, TextField } from '../parts/form.tsx';
import { Badge } from '../parts/show.tsx';

const dayMs = 86_400_000;

export function Replay({ id, progressed }: { id: string; progressed(): void }) {
  const { api } = usePage();
  const since = useSignal(toLocal(new Date(Date.now() - dayMs)));
  const until = useSignal('');
  const status = useSignal('missing_or_failed');
  const replay = useSignal<ReplayState | null>(null);
  const action = useAction(async () => {
    replay.value = await api.replay(id, {
      since: toIso(since.value),
      ...(until.value ? { until: toIso(until.value) } : {}),
      status: status.value,
    });
    progressed();
  });
  const running = replay.value !== null && replay.value.completedAt === null;
  useRepeated(running ? 1000 : null, async () => {
    if (!replay.value) return;
    replay.value = await api.getReplay(id, replay.value.id);
    progressed();
  });
  return (
    <section class="card" aria-labelledby="replay">
      <h2 id="replay">Replay</h2>
      <p class="soft">Sends past events again: after an outage, or to a webhook that is new.</p>
      <Form action={action} submit="Replay">
        <div class="pair">
          <TextField label="From" name="since" type="datetime-local" value={since} />
          <TextField
            label="Until"
            name="until"
            type="datetime-local"
            value={until}
            hint="Empty: until now."
          />
          <SelectField label="Which events" name="status" value={status} options={selections} />
        </div>
      </Form>
      {replay.value && (
        <div role="status">
          <p>
            <Badge state={running ? 'running' : 'done'} tone={running ? 'wait' : 'good'} />{' '}
            {replay.value.examined} events read, {replay.value.queued} deliveries queued.
          </p>
          {running && <progress aria-label="The replay is running" />}
        </div>
      )}
    </section>
  );
}

const selections = [
  ['missing_or_failed', 'Never sent, or failed'],
  ['missing', 'Never sent'],
  ['failed', 'Failed'],
  ['all', 'All'],
] as const;

/** For `datetime-local`, which has no time zone. */
function toLocal(date: Date): string {
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** A text that is not a time is sent as it is: the API says what is wrong. */
function toIso(local: string): string {
  const date = new Date(local);
  return Number.isNaN(date.getTime()) ? local : date.toISOString();
}
