/** One message: how it looks, what it says about itself, and what happened to it. */
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import type { Message } from '../contract.ts';
import { useLive, useLoaded, usePage, useRepeated } from '../page.ts';
import { ActionButton, DangerButton, Disclosure } from '../parts/form.tsx';
import { Badge, CodeBlock, Empty, Link, Loading, ProblemNote, Title, When } from '../parts/show.tsx';
import { navigate } from '../route.ts';
import {
  askAgainMs,
  describeAuthentication,
  formatAddress,
  formatFullAddress,
  formatSize,
} from '../words.ts';
import { ComposeForm } from './compose.tsx';
import { DeliveryTable } from './delivery-table.tsx';
import { MailFrame } from './mail-frame.tsx';
import { Sending } from './sending.tsx';

export function MessageView({ id }: { id: string }) {
  const { api } = usePage();
  const { value, problem, reload } = useLoaded(() => api.getMessage(id), [id]);
  useLive((event) => {
    if (event.name === 'gap' || event.data.message.id === id) reload();
  });
  const message = value.value;
  if (!message) {
    return (
      <>
        <Title>Message</Title>
        {problem.value ? <ProblemNote problem={problem.value} /> : <Loading />}
      </>
    );
  }
  const remove = async () => {
    await api.deleteMessage(id);
    navigate('messages');
  };
  return (
    <>
      <Link to="messages" class="back">
        ← Messages
      </Link>
      <Title
        actions={
          <DangerButton
            label="Delete"
            question="Delete this message, its events and its waiting deliveries? This cannot be undone."
            act={remove}
          />
        }
      >
        {message.subject || '(no subject)'}
      </Title>
      <Facts message={message} />
      <Content message={message} />
      <Attachments message={message} />
      <section aria-labelledby="reply">
        <h2 id="reply" class="hidden">
          Reply
        </h2>
        <Disclosure label="Reply">{(close) => <ComposeForm replyTo={message} sent={close} />}</Disclosure>
      </section>
      {message.authentication && <Authenticity message={message} />}
      {message.sending && <Sending message={message} reload={reload} />}
      <DeliveriesOf id={id} />
      <Thread message={message} />
    </>
  );
}

function Facts({ message }: { message: Message }) {
  const list = (addresses: Message['to']) => addresses.map(formatFullAddress).join(', ');
  const isOut = message.direction === 'outgoing';
  return (
    <dl class="facts">
      <dt>From</dt>
      <dd>{message.from ? formatFullAddress(message.from) : 'Unknown'}</dd>
      {message.to.length > 0 && <Fact name="To">{list(message.to)}</Fact>}
      {message.cc.length > 0 && <Fact name="Cc">{list(message.cc)}</Fact>}
      {message.bcc.length > 0 && <Fact name="Bcc">{list(message.bcc)}</Fact>}
      <Fact name={isOut ? 'Sent' : 'Received'}>{new Date(message.receivedAt).toLocaleString()}</Fact>
      <Fact name="Identity">
        <Link to={`identities/${message.identity.id}`}>{message.identity.value}</Link>
        {message.recipient &&
          message.recipient !== message.identity.value &&
          ` (sent to ${message.recipient})`}
      </Fact>
      <Fact name="Size">{formatSize(message.size)}</Fact>
    </dl>
  );
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

const views = ['HTML', 'Text', 'Headers', 'Raw'] as const;

function Content({ message }: { message: Message }) {
  const { html, text, headers } = message;
  const view = useSignal<(typeof views)[number]>(html === null ? 'Text' : 'HTML');
  const shown = views.filter((name) => name !== 'HTML' || html !== null);
  const move = (event: KeyboardEvent) => {
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (step === 0) return;
    const next = shown.at((shown.indexOf(view.value) + step) % shown.length) ?? view.value;
    view.value = next;
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <section class="card" aria-label="Content">
      <div class="tabs" role="tablist" aria-label="Content" onKeyDown={move}>
        {shown.map((name) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-controls="content"
            aria-selected={view.value === name}
            tabIndex={view.value === name ? 0 : -1}
            onClick={() => {
              view.value = name;
            }}
          >
            {name}
          </button>
        ))}
      </div>
      <div id="content" role="tabpanel" aria-labelledby={`tab-${view.value}`} class="stack">
        {message.truncated.length > 0 && (
          <p class="note">
            The message is long. Not all of it is shown here; the raw message has everything.
          </p>
        )}
        {view.value === 'HTML' && html !== null && <MailFrame message={message} html={html} />}
        {view.value === 'Text' && <p class="plain-text">{text ?? 'The message has no text.'}</p>}
        {view.value === 'Headers' && (
          <CodeBlock
            what="the headers"
            text={headers.map(({ name, value }) => `${name}: ${value}`).join('\n')}
          />
        )}
        {view.value === 'Raw' && <Raw id={message.id} />}
      </div>
    </section>
  );
}

const maxShownRaw = 200_000;

function Raw({ id }: { id: string }) {
  const { api } = usePage();
  const raw = useLoaded(async () => {
    const blob = await api.getRaw(id);
    return { blob, text: await blob.slice(0, maxShownRaw).text() };
  }, [id]);
  const found = raw.value.value;
  if (!found) return raw.problem.value ? <ProblemNote problem={raw.problem.value} /> : <Loading />;
  return (
    <>
      <ActionButton act={async () => save(found.blob, 'message.eml')}>Download</ActionButton>
      <CodeBlock what="the raw message" text={found.text} />
      {found.blob.size > maxShownRaw && <p class="hint">The beginning of {formatSize(found.blob.size)}.</p>}
    </>
  );
}

function Attachments({ message: { id, attachments } }: { message: Message }) {
  const { api } = usePage();
  if (attachments.length === 0) return null;
  return (
    <section class="stack" aria-labelledby="attachments">
      <h2 id="attachments">Attachments</h2>
      <ul class="plainlist">
        {attachments.map(({ id: n, filename, contentType, size }) => (
          <li key={n} class="actions">
            <ActionButton act={async () => save(await api.getAttachment(id, n), filename ?? 'attachment')}>
              Download {filename ?? 'attachment'}
            </ActionButton>
            <span class="soft">
              {contentType}, {formatSize(size)}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** As a download of plain bytes: a stranger named the type, and the browser must not open it as a page. */
function save(blob: Blob, filename: string): void {
  const url = URL.createObjectURL(new Blob([blob], { type: 'application/octet-stream' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = filename;
  link.click();
  URL.revokeObjectURL(url);
}

function Authenticity({ message: { authentication } }: { message: Message }) {
  if (!authentication) return null;
  return (
    <section class="stack" aria-labelledby="authenticity">
      <h2 id="authenticity">Is the sender who it says?</h2>
      <dl class="facts">
        {describeAuthentication(authentication).map(({ name, result, text }) => (
          <Fact key={name} name={name}>
            <Badge state={result} /> {text}
          </Fact>
        ))}
      </dl>
    </section>
  );
}

function DeliveriesOf({ id }: { id: string }) {
  const { api } = usePage();
  const webhooks = useLoaded(() => api.listWebhooks());
  const deliveries = useLoaded(() => api.listDeliveries({ message_id: id, limit: 200 }), [id]);
  const items = deliveries.value.value?.items ?? [];
  const pending = items.filter(({ status }) => status === 'pending');
  useRepeated(askAgainMs(pending, new Date()), deliveries.reload);
  useLive((event) => {
    if (event.name === 'gap' || event.data.message.id === id) deliveries.reload();
  });
  return (
    <section class="stack" aria-labelledby="deliveries">
      <h2 id="deliveries">Deliveries</h2>
      <ProblemNote problem={deliveries.problem.value} />
      {deliveries.value.value && items.length === 0 && (
        <Empty>
          No webhook asked for the events of this message. <Link to="webhooks">Create a webhook</Link>, then
          replay.
        </Empty>
      )}
      {items.length > 0 && (
        <DeliveryTable
          deliveries={items}
          webhooks={webhooks.value.value?.items ?? []}
          first="webhook"
          reload={deliveries.reload}
        />
      )}
    </section>
  );
}

function Thread({ message }: { message: Message }) {
  const { api } = usePage();
  const thread = useLoaded(
    () => api.listMessages({ thread_id: message.threadId, limit: 50 }),
    [message.threadId],
  );
  useLive((event) => {
    if (event.name === 'gap' || event.data.message.threadId === message.threadId) thread.reload();
  });
  const others = thread.value.value?.items.filter(({ id }) => id !== message.id) ?? [];
  if (others.length === 0) return null;
  return (
    <section class="stack" aria-labelledby="thread">
      <h2 id="thread">The conversation</h2>
      <ul class="plainlist">
        {others.map(({ id, subject, from, receivedAt, direction }) => (
          <li key={id}>
            <Link to={`messages/${id}`}>{subject || '(no subject)'}</Link>{' '}
            <span class="soft">
              {direction === 'outgoing' ? 'from you' : `from ${formatAddress(from)}`},{' '}
              <When at={receivedAt} />
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
