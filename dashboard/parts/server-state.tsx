/** Whether a mail server elsewhere accepts our login, in words: what is wrong, what to do, and what the server said. */
import type { ServerState as State } from '../contract.ts';
import { Badge, When } from './show.tsx';

export function ServerState({ name, state }: { name: string; state: State }) {
  return (
    <div class={`note ${state.state === 'failing' ? 'bad' : state.state === 'ok' ? 'good' : ''}`}>
      <Badge state={state.state} />
      <strong>{name}</strong> {describe(state)}
      {state.checkedAt && (
        <>
          {' '}
          <small>
            Checked <When at={state.checkedAt} />.
          </small>
        </>
      )}
      <ServerErrorDetail error={state.error} />
    </div>
  );
}

function describe({ state, error }: State): string {
  if (state === 'ok') return 'works: the server accepted the login.';
  if (state === 'unknown') return 'was not checked yet.';
  return `does not work. ${error?.message ?? ''}`;
}

/** The code, and the words of the server. */
export function ServerErrorDetail({ error }: { error: State['error'] }) {
  if (!error) return null;
  return (
    <p>
      <code>{error.code}</code>
      {error.response && (
        <>
          {' '}
          The server said: <q>{error.response}</q>
        </>
      )}
    </p>
  );
}
