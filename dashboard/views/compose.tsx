/** Writing a mail, or a reply to one: `POST /messages`. */
import { useSignal } from '@preact/signals';
import type { Identity, Message } from '../contract.ts';
import { useAction, useLoaded, usePage } from '../page.ts';
import { Form, SelectField, TextField } from '../parts/form.tsx';
import { Empty, Link, Loading, ProblemNote, Title } from '../parts/show.tsx';
import { navigate } from '../route.ts';

export function Compose() {
  return (
    <>
      <Link to="messages" class="back">
        ← Messages
      </Link>
      <Title>Write a mail</Title>
      <div class="card">
        <ComposeForm />
      </div>
    </>
  );
}

interface ComposeProps {
  replyTo?: Message;
  sent?(): void;
}

export function ComposeForm(props: ComposeProps) {
  const { api } = usePage();
  const { value, problem } = useLoaded(() => api.listIdentities());
  if (!value.value) return problem.value ? <ProblemNote problem={problem.value} /> : <Loading />;
  const identities = value.value.items;
  if (identities.length === 0)
    return (
      <Empty>
        A mail needs a sender. <Link to="identities">Connect an address</Link> first.
      </Empty>
    );
  return <Fields {...props} identities={identities} />;
}

function Fields({ identities, replyTo, sent }: ComposeProps & { identities: Identity[] }) {
  const { api } = usePage();
  const identityId = useSignal(replyTo?.identity.id ?? identities[0]?.id ?? '');
  const isDomain = identities.find(({ id }) => id === identityId.value)?.kind === 'domain';
  const from = useSignal(replyTo?.recipient ?? '');
  const to = useSignal(replyTo ? recipientsOf(replyTo) : '');
  const cc = useSignal('');
  const subject = useSignal(replyTo ? replySubject(replyTo.subject) : '');
  const text = useSignal('');
  const action = useAction(async () => {
    const given = {
      identityId: identityId.value,
      ...(isDomain && from.value ? { from: from.value } : {}),
      ...(to.value ? { to: to.value } : {}),
      ...(cc.value ? { cc: cc.value } : {}),
      subject: subject.value,
      text: text.value,
      ...(replyTo ? { inReplyTo: replyTo.id } : {}),
    };
    const message = await api.sendMessage(given);
    sent?.();
    navigate(`messages/${message.id}`);
  });
  return (
    <Form action={action} submit="Send">
      <div class="pair">
        <SelectField
          label="Send as"
          name="identityId"
          value={identityId}
          options={identities.map(({ id, value }) => [id, value])}
        />
        {isDomain && <TextField label="From" name="from" value={from} hint="An address of this domain." />}
      </div>
      <div class="pair">
        <TextField label="To" name="to" value={to} hint="Several with commas." />
        <TextField label="Cc" name="cc" value={cc} />
      </div>
      <TextField label="Subject" name="subject" value={subject} />
      <TextField label="Text" name="text" value={text} rows={10} />
    </Form>
  );
}

/** Addresses without names: a stranger wrote the names, and a comma in one would make it two recipients. */
function recipientsOf({ direction, replyTo, from, to }: Message): string {
  const repliedTo = replyTo.length > 0 ? replyTo : from ? [from] : [];
  const recipients = direction === 'outgoing' ? to : repliedTo;
  return recipients.flatMap(({ address }) => address ?? []).join(', ');
}

function replySubject(subject: string | null): string {
  return /^re:/i.test(subject ?? '') ? (subject ?? '') : `Re: ${subject ?? ''}`;
}
