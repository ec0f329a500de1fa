/** Three steps to the first delivered mail, with the values of this installation. Each ticks itself off when it has happened. */
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import type { DeliveryItem, Identity, MessageSummary, Webhook } from '../contract.ts';
import { useAction, usePage } from '../page.ts';
import { ActionButton, Form, TextField } from '../parts/form.tsx';
import { Badge, CodeBlock, Link, NextTry } from '../parts/show.tsx';
import { apiBase, verifyingDocs } from '../route.ts';
import { summarizeDeliveries } from '../words.ts';

interface FirstStepsProps {
  identities: Identity[];
  webhooks: Webhook[];
  newest: MessageSummary | undefined;
  ofNewest: DeliveryItem[];
  /** A delivery of the newest message that failed at least once. */
  refused: DeliveryItem | undefined;
  delivered: DeliveryItem | undefined;
  reload(): Promise<void>;
}

export function FirstSteps(props: FirstStepsProps) {
  const { identities, webhooks, delivered, reload } = props;
  const identity = identities.findLast(({ kind }) => kind === 'email') ?? identities.at(-1);
  const webhook = webhooks.at(-1);
  return (
    <section class="stack" aria-labelledby="first">
      <h2 id="first">Three steps to the first delivered mail</h2>
      <ol class="steps">
        <Step title="Connect an address" isDone={identity !== undefined}>
          {identity ? (
            <p>
              <Link to={`identities/${identity.id}`}>{identity.value}</Link> is connected.
            </p>
          ) : (
            <ConnectAddress reload={reload} />
          )}
        </Step>
        <Step title="Say where to POST its mail" isDone={webhook !== undefined}>
          {webhook ? (
            <p>
              Mail is POSTed to <Link to={`webhooks/${webhook.id}`}>{webhook.url}</Link>
            </p>
          ) : (
            <ConnectWebhook reload={reload} />
          )}
        </Step>
        <Step title="Receive a mail" isDone={delivered !== undefined}>
          {delivered ? (
            <Delivered delivered={delivered} webhooks={webhooks} />
          ) : identity && webhook ? (
            <ReceiveMail {...props} recipient={addressOf(identity)} />
          ) : (
            <p class="soft">After the first two steps, one button sends a mail.</p>
          )}
        </Step>
      </ol>
    </section>
  );
}

function Step({ title, isDone, children }: { title: string; isDone: boolean; children: ComponentChildren }) {
  return (
    <li class={`card ${isDone ? 'done' : ''}`}>
      <div>
        <h3>
          {title} {isDone && <span class="hidden">(done)</span>}
        </h3>
        {children}
      </div>
    </li>
  );
}

function ConnectAddress({ reload }: { reload(): Promise<void> }) {
  const { api } = usePage();
  const value = useSignal('hello@example.com');
  const action = useAction(async () => {
    await api.createIdentity({ value: value.value.trim() });
    await reload();
  });
  return (
    <Form action={action} submit="Connect">
      <TextField
        label="Address or domain"
        name="value"
        value={value}
        hint="Any address works for a first try on your own machine."
      />
    </Form>
  );
}

function ConnectWebhook({ reload }: { reload(): Promise<void> }) {
  const { api, userId } = usePage();
  const url = useSignal('http://localhost:4000/');
  const action = useAction(async () => {
    await api.createWebhook({ url: url.value.trim(), events: ['message.received'], ownerId: userId });
    await reload();
  });
  return (
    <Form action={action} submit="Create the webhook">
      <TextField
        label="URL of your backend"
        name="url"
        type="url"
        value={url}
        hint="Every mail that arrives is POSTed to this URL."
      />
      <SmallBackend url={url.value} />
    </Form>
  );
}

/** For a URL on this machine: a newcomer sees the first event without writing a backend. */
function SmallBackend({ url }: { url: string }) {
  const port = readLocalPort(url);
  if (port === null) return null;
  const command = `node -e 'require("http").createServer((q, r) => { q.pipe(process.stdout); r.end() }).listen(${port}, "127.0.0.1")'`;
  return (
    <div class="stack">
      <p class="hint">
        No backend yet? Run this one in a second terminal. It prints every event that it gets:
      </p>
      <CodeBlock what="the command of a small backend" text={command} />
    </div>
  );
}

function readLocalPort(url: string): number | null {
  if (!URL.canParse(url)) return null;
  const { hostname, port, protocol } = new URL(url);
  if (protocol !== 'http:' || (hostname !== 'localhost' && hostname !== '127.0.0.1')) return null;
  return Number(port || 80);
}

function ReceiveMail({
  recipient,
  webhooks,
  newest,
  ofNewest,
  refused,
  reload,
}: FirstStepsProps & { recipient: string }) {
  const { api } = usePage();
  const send = async () => {
    await api.receive(recipient, firstMail(recipient, new Date()));
    await reload();
  };
  const state = summarizeDeliveries(ofNewest);
  return (
    <>
      <p>
        The button lets a mail to <code>{recipient}</code> arrive here, without any mail server. Posthorn
        POSTs it to your webhook.
      </p>
      <ActionButton act={send} kind={refused ? '' : 'main'}>
        Send a first mail
      </ActionButton>
      {newest && (
        <p role="status">
          <Link to={`messages/${newest.id}`}>{newest.subject ?? '(no subject)'}</Link> arrived:{' '}
          <Badge state={state.text} tone={state.tone} />
        </p>
      )}
      {refused && <Refused delivery={refused} url={urlOf(refused, webhooks)} reload={reload} />}
      <p class="hint">The same from a terminal:</p>
      <CodeBlock what="the command that sends a mail" text={curl(recipient)} />
    </>
  );
}

interface RefusedProps {
  delivery: DeliveryItem;
  url: string;
  reload(): Promise<void>;
}

/** After the second try the next is minutes away, and a newcomer does not wait so long: hence the button. */
function Refused({ delivery, url, reload }: RefusedProps) {
  const { api } = usePage();
  const { id, messageId, lastResponseStatus, lastError, nextAttemptAt } = delivery;
  const tryAgain = async () => {
    await api.redeliver(id);
    await reload();
  };
  return (
    <div class="note bad stack">
      <p>
        {url} {lastResponseStatus ? `answered ${lastResponseStatus}` : `does not answer (${lastError})`}.{' '}
        <NextTry at={nextAttemptAt} /> <Link to={`messages/${messageId}?tries=${id}`}>See every try.</Link>
      </p>
      {lastError === 'connect_failed' && <SmallBackend url={url} />}
      <ActionButton act={tryAgain} kind="main">
        Try again now
      </ActionButton>
    </div>
  );
}

function Delivered({ delivered, webhooks }: { delivered: DeliveryItem; webhooks: Webhook[] }) {
  const { messageId, subject, lastResponseStatus } = delivered;
  return (
    <>
      <p role="status">
        <Link to={`messages/${messageId ?? ''}`}>{subject ?? '(no subject)'}</Link> was POSTed to{' '}
        {urlOf(delivered, webhooks)}, which answered {lastResponseStatus}.
      </p>
      <p class="soft">
        Next: <a href={verifyingDocs}>verify the signature</a> in your backend, or{' '}
        <Link to="accounts">connect a mailbox</Link> that you already have.
      </p>
    </>
  );
}

function urlOf({ webhookId }: DeliveryItem, webhooks: Webhook[]): string {
  return webhooks.find(({ id }) => id === webhookId)?.url ?? 'a deleted webhook';
}

function addressOf({ kind, value }: Identity): string {
  return kind === 'email' ? value : `hello@${value}`;
}

function firstMail(recipient: string, now: Date): string {
  const lines = [
    'From: Posthorn <posthorn@example.com>',
    `To: ${recipient}`,
    'Subject: The first mail',
    `Date: ${now.toUTCString().replace('GMT', '+0000')}`,
    `Message-ID: <first-${now.getTime()}@example.com>`,
    'Content-Type: text/plain; charset=utf-8',
    '',
    'It works. This mail was stored, made into an event, and POSTed to your webhook.',
    '',
  ];
  return lines.join('\r\n');
}

function curl(recipient: string): string {
  return [
    'API_KEY=ph_paste_yours_here',
    `curl -X POST "${apiBase}inbound?recipient=${encodeURIComponent(recipient)}" \\`,
    '  -H "Authorization: Bearer $API_KEY" -H "Content-Type: message/rfc822" \\',
    `  --data-binary $'From: me@example.com\\r\\nSubject: Hello\\r\\n\\r\\nHello.\\r\\n'`,
  ].join('\n');
}
