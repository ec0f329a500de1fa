/** Three steps to the first delivered mail, with the values of this installation. Each ticks itself off when it has happened. */
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import type { DeliveryItem, Identity, MessageSummary, Webhook } from '../contract.ts';
import { useAction, usePage } from '../page.ts';
import { ActionButton, Form, TextField } from '../parts/form.tsx';
import { Badge, CodeBlock, Link } from '../parts/show.tsx';
import { apiBase } from '../route.ts';
import { summarizeDeliveries } from '../words.ts';

/** Prints what it gets, so that a newcomer sees the first event without writing a backend. */
const receiver = `node -e 'require("http").createServer((q, r) => { q.pipe(process.stdout); r.end() }).listen(4000)'`;

interface FirstStepsProps {
  identities: Identity[];
  webhooks: Webhook[];
  newest: MessageSummary | undefined;
  ofNewest: DeliveryItem[];
  reload(): Promise<void>;
}

export function FirstSteps({ identities, webhooks, newest, ofNewest, reload }: FirstStepsProps) {
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
        <Step title="Say where its events go" isDone={webhook !== undefined}>
          {webhook ? (
            <p>
              Events are POSTed to <Link to={`webhooks/${webhook.id}`}>{webhook.url}</Link>
            </p>
          ) : (
            <ConnectWebhook reload={reload} />
          )}
        </Step>
        <Step title="Receive a mail" isDone={false}>
          {identity && webhook ? (
            <ReceiveMail
              recipient={addressOf(identity)}
              newest={newest}
              ofNewest={ofNewest}
              reload={reload}
            />
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
    <Form action={action} fields={['value']} submit="Connect">
      <TextField
        label="Address or domain"
        name="value"
        value={value}
        problem={action.problem.value}
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
    <>
      <Form action={action} fields={['url']} submit="Create the webhook">
        <TextField
          label="URL of your backend"
          name="url"
          type="url"
          value={url}
          problem={action.problem.value}
        />
      </Form>
      <p class="hint">No backend yet? This command prints every event that it gets:</p>
      <CodeBlock what="the command of a small backend" text={receiver} />
    </>
  );
}

function ReceiveMail({
  recipient,
  newest,
  ofNewest,
  reload,
}: {
  recipient: string;
  newest: MessageSummary | undefined;
  ofNewest: DeliveryItem[];
  reload(): Promise<void>;
}) {
  const { api } = usePage();
  const send = async () => {
    await api.receive(recipient, firstMail(recipient, new Date()));
    await reload();
  };
  const state = summarizeDeliveries(ofNewest);
  const [failing] = ofNewest.filter(({ lastError }) => lastError !== null);
  return (
    <>
      <p>
        A mail to <code>{recipient}</code> becomes an event, and the event is POSTed to your webhook.
      </p>
      <ActionButton act={send} kind="main">
        Send a first mail
      </ActionButton>
      {newest && (
        <p role="status">
          <Link to={`messages/${newest.id}`}>{newest.subject ?? '(no subject)'}</Link> arrived:{' '}
          <Badge state={state.text} tone={state.tone} />
        </p>
      )}
      {failing && (
        <p class="note bad">
          The last try failed ({failing.lastResponseStatus ?? failing.lastError}). Start your backend:
          Posthorn tries again by itself. {newest && <Link to={`messages/${newest.id}`}>See every try.</Link>}
        </p>
      )}
      <p class="hint">The same from a terminal:</p>
      <CodeBlock what="the command that sends a mail" text={curl(recipient)} />
    </>
  );
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
    `curl -X POST "${apiBase}inbound?recipient=${encodeURIComponent(recipient)}" \\`,
    '  -H "Authorization: Bearer $API_KEY" -H "Content-Type: message/rfc822" \\',
    `  --data-binary $'From: me@example.com\\r\\nSubject: Hello\\r\\n\\r\\nHello.\\r\\n'`,
  ].join('\n');
}
