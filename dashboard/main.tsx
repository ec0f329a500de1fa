/** The page: signs in, opens the stream of events, and shows the view that the path names. */
import { signal, useSignal } from '@preact/signals';
import { type ComponentChildren, render } from 'preact';
import { useEffect, useMemo } from 'preact/hooks';
import { type Api, makeApi } from './api.ts';
import { openLive } from './live.ts';
import { type Page, PageContext } from './page.ts';
import { Horn, Link, Loading, ProblemNote, Title } from './parts/show.tsx';
import type { ApiProblem } from './request.ts';
import { apiBase, appBase, navigate, usePath } from './route.ts';
import { AccountView } from './views/account.tsx';
import { Accounts } from './views/accounts.tsx';
import { ApiKeys } from './views/api-keys.tsx';
import { Compose } from './views/compose.tsx';
import { Deliveries } from './views/deliveries.tsx';
import { Home } from './views/home.tsx';
import { Identities } from './views/identities.tsx';
import { IdentityView } from './views/identity.tsx';
import { MessageView } from './views/message.tsx';
import { Messages } from './views/messages.tsx';
import { ProviderView } from './views/provider.tsx';
import { Providers } from './views/providers.tsx';
import { SignIn } from './views/sign-in.tsx';
import { Suppressions } from './views/suppressions.tsx';
import { WebhookView } from './views/webhook.tsx';
import { Webhooks } from './views/webhooks.tsx';

type State = 'checking' | 'signed out' | 'signed in';

function App() {
  const state = useSignal<State>('checking');
  const problem = useSignal<ApiProblem | null>(null);
  const page = useSignal<Page | null>(null);
  const path = usePath();

  const api = useMemo(() => {
    const csrfToken = signal('');
    const made = makeApi({
      base: apiBase,
      csrfToken: () => csrfToken.value,
      onSignedOut: () => {
        page.value?.live.close();
        page.value = null;
        state.value = 'signed out';
      },
    });
    const enter = async () => {
      const session = await made.currentSession();
      csrfToken.value = session.csrfToken;
      const { userId } = await made.me();
      const live = openLive(new URL('events/stream', apiBase), made.currentSession);
      page.value = { api: made, live, userId, sessionId: session.id };
      state.value = 'signed in';
    };
    return { ...made, enter };
  }, [page, state]);

  useEffect(() => {
    api.enter().catch((error) => {
      if (state.value !== 'signed out') problem.value = error;
    });
  }, [api, problem, state]);

  if (state.value === 'signed out' || path[0] === 'sign-in') {
    const enter = async () => {
      page.value?.live.close();
      await api.enter();
      if (path[0] === 'sign-in') navigate('');
    };
    return <SignIn api={api} enter={enter} />;
  }
  if (!page.value) return <Waiting problem={problem.value} />;
  return (
    <PageContext.Provider value={page.value}>
      <Shell section={path[0] ?? ''} api={api} sessionId={page.value.sessionId}>
        <View key={path.join('/')} path={path} />
      </Shell>
    </PageContext.Provider>
  );
}

function View({ path: [section = '', id] }: { path: string[] }) {
  if (section === '') return <Home />;
  if (section === 'messages') return id ? <MessageView id={id} /> : <Messages />;
  if (section === 'write') return <Compose />;
  if (section === 'identities') return id ? <IdentityView id={id} /> : <Identities />;
  if (section === 'accounts') return id ? <AccountView id={id} /> : <Accounts />;
  if (section === 'providers') return id ? <ProviderView id={id} /> : <Providers />;
  if (section === 'webhooks') return id ? <WebhookView id={id} /> : <Webhooks />;
  if (section === 'deliveries') return <Deliveries />;
  if (section === 'suppressions') return <Suppressions />;
  if (section === 'api-keys') return <ApiKeys />;
  return <Title>There is no such page</Title>;
}

const sections = [
  ['', 'Home'],
  ['messages', 'Messages'],
  ['identities', 'Identities'],
  ['webhooks', 'Webhooks'],
  ['deliveries', 'Deliveries'],
  ['accounts', 'Accounts'],
  ['providers', 'Providers'],
  ['suppressions', 'Suppressions'],
  ['api-keys', 'API keys'],
] as const;

function Shell({
  section,
  api,
  sessionId,
  children,
}: {
  section: string;
  api: Api;
  sessionId: string;
  children: ComponentChildren;
}) {
  const { isOpen, toggle } = useMenu();
  return (
    <div class="shell">
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class={isOpen ? 'side open' : 'side'}>
        <Link to="" class="brand">
          <Horn />
          Posthorn
        </Link>
        <button type="button" class="menu" aria-expanded={isOpen} aria-controls="sections" onClick={toggle}>
          Menu
        </button>
        <nav id="sections" aria-label="Sections">
          {sections.map(([to, name]) => (
            <Link key={to} to={to} current={section === to}>
              {name}
            </Link>
          ))}
        </nav>
        <div class="foot">
          <LiveState />
          <a href={`${apiBase}docs`}>API reference</a>
          <button type="button" class="plain" onClick={() => leave(api, sessionId)}>
            Sign out
          </button>
        </div>
      </header>
      <main id="main">{children}</main>
    </div>
  );
}

/** The menu of a phone. Following any link closes it. */
function useMenu() {
  const isOpen = useSignal(false);
  useEffect(() => {
    const close = () => {
      isOpen.value = false;
    };
    addEventListener('popstate', close);
    return () => removeEventListener('popstate', close);
  }, [isOpen]);
  const toggle = () => {
    isOpen.value = !isOpen.value;
  };
  return { isOpen: isOpen.value, toggle };
}

function LiveState() {
  return (
    <PageContext.Consumer>
      {(page) => {
        const isOpen = page?.live.isOpen.value ?? false;
        return (
          <span class={`live ${isOpen ? 'open' : ''}`} role="status">
            {isOpen ? 'Live' : 'Connecting …'}
          </span>
        );
      }}
    </PageContext.Consumer>
  );
}

async function leave(api: Api, sessionId: string): Promise<void> {
  await api.endSession(sessionId);
  // A fresh page: nothing of what was shown stays in memory.
  location.assign(appBase);
}

function Waiting({ problem }: { problem: ApiProblem | null }) {
  return (
    <div class="door">
      <main>
        {problem ? <ProblemNote problem={problem} /> : <Loading />}
        {problem && (
          <button type="button" class="main" onClick={() => location.reload()}>
            Try again
          </button>
        )}
      </main>
    </div>
  );
}

const place = document.getElementById('page');
if (place) render(<App />, place);
