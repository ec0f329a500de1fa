/** One provider: the URLs to enter there, and whether it accepts our mail. */
import { useLoaded, usePage } from '../page.ts';
import { ActionButton, DangerButton } from '../parts/form.tsx';
import { ServerState } from '../parts/server-state.tsx';
import { CodeBlock, Link, Loading, ProblemNote, Title } from '../parts/show.tsx';
import { providerKinds } from '../provider-kinds.ts';
import { navigate } from '../route.ts';
import { nameOf } from './providers.tsx';

const hiddenUrl = 'Only shown to who signed in with the scope full.';

export function ProviderView({ id }: { id: string }) {
  const { api } = usePage();
  const { value, problem } = useLoaded(() => api.getProvider(id), [id]);
  const provider = value.value;
  if (!provider) {
    return (
      <>
        <Title>Provider</Title>
        {problem.value ? <ProblemNote problem={problem.value} /> : <Loading />}
      </>
    );
  }
  const verify = async () => {
    value.value = await api.verifyProvider(id);
  };
  const remove = async () => {
    await api.deleteProvider(id);
    navigate('providers');
  };
  const { name, inbound, events } = providerKinds[provider.kind];
  return (
    <>
      <Link to="providers" class="back">
        ← Providers
      </Link>
      <Title
        actions={
          <DangerButton
            label="Remove"
            question={`Remove ${nameOf(provider)}? Its URLs stop working at once. This cannot be undone.`}
            act={remove}
          />
        }
      >
        {nameOf(provider)}
      </Title>
      <section class="stack" aria-label="State">
        <div role="status">
          <ServerState name={`Sending through ${name}`} state={provider.send} />
        </div>
        <ActionButton act={verify} kind="main">
          Verify now
        </ActionButton>
      </section>
      <section class="card" aria-labelledby="urls">
        <h2 id="urls">Enter these at {name}</h2>
        <p class="soft">Treat both URLs like passwords: who knows them needs no API key.</p>
        <h3>For mail that comes in</h3>
        <CodeBlock what="the URL for mail that comes in" text={provider.inboundUrl ?? hiddenUrl} />
        <p class="hint">{inbound}</p>
        <h3>For deliveries, bounces and complaints</h3>
        <CodeBlock what="the URL for reports" text={provider.eventsUrl ?? hiddenUrl} />
        <p class="hint">{events}</p>
      </section>
      <p class="soft">
        To use the provider, choose it on the page of an <Link to="identities">identity</Link>.
      </p>
    </>
  );
}
