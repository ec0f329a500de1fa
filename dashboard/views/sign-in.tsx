/** Signing in: with the link that the start printed (a button spends it, so that a preview of the link does not), or with an API key. */
import { useSignal } from '@preact/signals';
import type { Api } from '../api.ts';
import { useAction } from '../page.ts';
import { Form, TextField } from '../parts/form.tsx';
import { Horn, ProblemNote, Title } from '../parts/show.tsx';
import { appBase } from '../route.ts';

export function SignIn({ api, enter }: { api: Api; enter(): Promise<void> }) {
  const token = useSignal(location.hash.slice(1));
  const apiKey = useSignal('');
  const byLink = useAction(async () => {
    await api.signIn({ token: token.value });
    await enter();
  });
  const byKey = useAction(async () => {
    await api.signIn({ apiKey: apiKey.value.trim() });
    await enter();
  });
  return (
    <div class="door">
      <main>
        <p class="brand">
          <Horn />
          Posthorn
        </p>
        <Title>Sign in</Title>
        {!isSecureContext && <NeedsHttps />}
        {token.value && (
          <div class="card">
            <p>This link signs this browser in. It works once.</p>
            <ProblemNote problem={byLink.problem.value} />
            <button type="button" class="main" disabled={byLink.busy.value} onClick={() => byLink.run()}>
              Sign in with this link
            </button>
          </div>
        )}
        {(!token.value || byLink.problem.value) && (
          <>
            <div class="card">
              <Form action={byKey} submit="Sign in">
                <TextField
                  label="API key"
                  name="apiKey"
                  type="password"
                  value={apiKey}
                  placeholder="ph_…"
                  hint="The first start printed it. The browser keeps a session, and never the key."
                />
              </Form>
            </div>
            <p class="hint">
              No key at hand? <code>posthorn sign-in-link</code> prints a link that signs in. In a clone of
              the repository: <code class="whole">npm run -s posthorn sign-in-link</code>
            </p>
          </>
        )}
      </main>
    </div>
  );
}

/** On plain http at a name other than localhost, browsers do not say which page a GET is from (`Sec-Fetch-Site`): no session works. */
function NeedsHttps() {
  return (
    <div class="note bad" role="alert">
      <strong>Sign-in needs https</strong>
      <p>
        On plain http, browsers keep a session only at <code>localhost</code>. Open the dashboard through
        https, or through a tunnel: <code>{tunnel}</code>, then{' '}
        <a href={`http://localhost:${port}${appBase}`}>{`http://localhost:${port}`}</a>.
      </p>
    </div>
  );
}

const port = location.port || '80';
const tunnel = `ssh -L ${port}:localhost:${port} ${location.hostname}`;
