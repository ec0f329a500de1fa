/** What happened to a message that was sent from here: each recipient, and every conversation with a mail server. */
import type { Message, SendAttempt } from '../contract.ts';
import { useLoaded, usePage, useRepeated } from '../page.ts';
import { ActionButton } from '../parts/form.tsx';
import { Table } from '../parts/list.tsx';
import { Badge, When } from '../parts/show.tsx';
import { askAgainMs, formatMs } from '../words.ts';

export function Sending({ message, reload }: { message: Message; reload(): Promise<void> }) {
  const { api } = usePage();
  const { id, sending } = message;
  const attempts = useLoaded(() => api.listSendAttempts(id), [id, sending?.status]);
  const isQueued = sending?.status === 'queued';
  const queued = sending?.recipients.filter(({ status }) => status === 'queued') ?? [];
  useRepeated(askAgainMs(queued, new Date()), async () => {
    await Promise.all([reload(), attempts.reload()]);
  });
  if (!sending) return null;
  const cancel = async () => {
    await api.cancelMessage(id);
    await reload();
  };
  return (
    <section class="stack" aria-labelledby="sending">
      <h2 id="sending">Sending</h2>
      <div class="actions">
        <Badge state={sending.status} />
        {isQueued && <ActionButton act={cancel}>Cancel sending</ActionButton>}
      </div>
      <Table head={['Recipient', 'State', 'Last reply of a mail server', 'Tries']}>
        {sending.recipients.map(({ address, status, lastResponse, attemptCount, nextAttemptAt }) => (
          <tr key={address}>
            <td>{address}</td>
            <td>
              <Badge state={status} />
            </td>
            <td>{lastResponse ? describeReply(lastResponse) : '–'}</td>
            <td>
              {attemptCount}
              {nextAttemptAt && status === 'queued' && (
                <>
                  , next at <When at={nextAttemptAt} />
                </>
              )}
            </td>
          </tr>
        ))}
      </Table>
      <ol class="tries">
        {attempts.value.value?.map(({ id: attempt, startedAt, durationMs, host, response, error }) => (
          <li key={attempt} class={isGood(response, error) ? 'good' : 'bad'}>
            {error === 'reported' && 'A report came back: '}
            {host ?? (error === 'reported' ? 'the mail server' : 'No mail server')}:{' '}
            {response ? describeReply(response) : error}{' '}
            <span class="soft">
              <When at={startedAt} />
              {error !== 'reported' && `, ${formatMs(durationMs)}`}
            </span>
          </li>
        ))}
      </ol>
    </section>
  );
}

type Reply = NonNullable<SendAttempt['response']>;

/** A report may have no code, and says more with the enhanced one. */
function describeReply({ code, enhanced, text }: Reply): string {
  return `${code ?? enhanced ?? ''} ${text}`.trim();
}

function isGood(response: SendAttempt['response'], error: string | null): boolean {
  if (response === null || (error !== null && error !== 'reported')) return false;
  return response.code === null ? (response.enhanced ?? '').startsWith('2') : response.code < 400;
}
