/** The mailboxes of an address whose mail another server holds: how far they are read, a check now, and importing older mail. */
import { useSignal } from '@preact/signals';
import type { Mailbox } from '../contract.ts';
import { useAction, useLoaded, usePage, useRepeated } from '../page.ts';
import { ActionButton, CheckField, Disclosure, Form, TextField } from '../parts/form.tsx';
import { Table } from '../parts/list.tsx';
import { ServerErrorDetail } from '../parts/server-state.tsx';
import { Badge, ProblemNote, When } from '../parts/show.tsx';
import { describeSync } from '../words.ts';

/** How often to ask: while mail is being read, and otherwise. No event tells about progress. */
const busyMs = 1000;
const calmMs = 5000;

export function Mailboxes({ identityId }: { identityId: string }) {
  const { api } = usePage();
  const { value, problem, reload } = useLoaded(() => api.listMailboxes(identityId), [identityId]);
  const mailboxes = value.value ?? [];
  const isSynced = mailboxes.some(({ sync }) => sync !== null);
  const isBusy = mailboxes.some(({ sync }) => sync?.state === 'syncing');
  useRepeated(isBusy ? busyMs : isSynced ? calmMs : null, reload);
  const sync = async (given: object) => {
    value.value = await api.syncIdentity(identityId, given);
  };
  const common = findCommonError(mailboxes);
  if (!isSynced) return <ProblemNote problem={problem.value} />;
  return (
    <section class="stack" aria-labelledby="mailboxes">
      <div class="title">
        <h2 id="mailboxes">Mailboxes</h2>
        <div class="actions">
          <ActionButton act={() => sync({})}>Check now</ActionButton>
        </div>
      </div>
      <p class="soft">
        New mail comes by itself. Mail that was there before the account was connected is not imported unless
        you ask for it.
      </p>
      <ProblemNote problem={problem.value} />
      {common && (
        <div class="note bad" role="status">
          <strong>The mailboxes cannot be read.</strong> {common.message}
          <ServerErrorDetail error={common} />
        </div>
      )}
      <Table head={['Mailbox', 'State', 'Messages there', 'Last read']}>
        {mailboxes.map((mailbox) => (
          <Row key={mailbox.id} mailbox={mailbox} isErrorAbove={common !== null} />
        ))}
      </Table>
      <Backlog mailboxes={mailboxes} />
      <Disclosure label="Import older mail" kind="">
        {(close) => (
          <Import
            ask={async (given) => {
              await sync(given);
              close();
            }}
          />
        )}
      </Disclosure>
    </section>
  );
}

const names: Record<Mailbox['kind'], string> = {
  inbox: 'Inbox',
  sent: 'Sent',
  spam: 'Spam',
  trash: 'Trash',
};

/** The error of the whole connection, which every mailbox repeats. */
function findCommonError(mailboxes: readonly Mailbox[]) {
  const [first, ...others] = mailboxes.flatMap(({ sync }) => sync?.error ?? []);
  const isCommon = others.length > 0 && others.every(({ message }) => message === first?.message);
  return isCommon && first ? first : null;
}

function Row({ mailbox, isErrorAbove }: { mailbox: Mailbox; isErrorAbove: boolean }) {
  const { kind, path, total, sync } = mailbox;
  return (
    <tr>
      <td>
        <strong>{names[kind]}</strong> {path && <small>{path}</small>}
      </td>
      <td>
        {sync && <Badge state={sync.state} />}{' '}
        {isErrorAbove && sync?.error ? 'See above.' : describeSync(mailbox)}
        {!isErrorAbove && <ServerErrorDetail error={sync?.error ?? null} />}
      </td>
      <td>{total?.toLocaleString() ?? '–'}</td>
      <td>{sync?.lastSyncedAt ? <When at={sync.lastSyncedAt} /> : '–'}</td>
    </tr>
  );
}

/** The progress of an import. The API tells what is left; the largest number that was seen is the whole. */
function Backlog({ mailboxes }: { mailboxes: readonly Mailbox[] }) {
  const left = mailboxes.reduce((sum, { sync }) => sum + (sync?.backlog ?? 0), 0);
  const most = useSignal(0);
  if (left === 0) most.value = 0;
  else if (left > most.value) most.value = left;
  return (
    <div role="status">
      {left > 0 && (
        <>
          <p>Importing older mail: {left.toLocaleString()} left to look at.</p>
          <progress aria-label="The import of older mail" value={most.value - left} max={most.value} />
        </>
      )}
    </div>
  );
}

function Import({ ask }: { ask(given: object): Promise<void> }) {
  const since = useSignal('');
  const hasEvents = useSignal(false);
  const action = useAction(() => {
    const date = new Date(`${since.value}T00:00`);
    // A text that is not a date is sent as it is: the API says what is wrong.
    const at = Number.isNaN(date.getTime()) ? since.value : date.toISOString();
    return ask({ since: at, events: hasEvents.value });
  });
  return (
    <Form action={action} submit="Import">
      <TextField
        label="Mail since"
        name="since"
        type="date"
        value={since}
        hint="Mail that was imported before is not imported again."
      />
      <CheckField label="Also POST an event to the webhooks for each message" value={hasEvents} />
    </Form>
  );
}
