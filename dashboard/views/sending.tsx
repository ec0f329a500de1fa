/** What happened to a message that was sent from here: each recipient, and every conversation with a mail server. */
import type { Message } from '../contract.ts';
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
            <td>{lastResponse ? `${lastResponse.code} ${lastResponse.text}` : '–'}</td>
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
          <li
            key={attempt}
            class={error === null && response !== null && response.code < 400 ? 'good' : 'bad'}
          >
            {host ?? 'No mail server'}: {response ? `${response.code} ${response.text}` : error}{' '}
            <span class="soft">
              <When at={startedAt} />, {formatMs(durationMs)}
            </span>
          </li>
        ))}
      </ol>
    </section>
  );
}
