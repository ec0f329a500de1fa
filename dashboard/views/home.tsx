/** The first view: the first steps until the first mail is delivered, then the last day and what needs attention. */
import type { ComponentChildren } from 'preact';
import { useRef } from 'preact/hooks';
import { readRecords } from '../api.ts';
import type { DeliveryItem, Identity, MessageSummary, SmtpAccount, Stats, Webhook } from '../contract.ts';
import { useAfterEvents, useLoaded, usePage, useRepeated } from '../page.ts';
import { Badge, Link, Loading, NextTry, ProblemNote, Title, When } from '../parts/show.tsx';
import { askAgainMs } from '../words.ts';
import { Chart, fillHours } from './chart.tsx';
import { FirstSteps } from './first-steps.tsx';

const dayMs = 86_400_000;

export function Home() {
  const { api } = usePage();
  const { value, problem, reload } = useLoaded(async () => {
    const since = new Date(Date.now() - dayMs).toISOString();
    // What is pending comes first: what has ended by then is in the answers that follow.
    const [incoming, pending] = await Promise.all([
      api.listMessages({ direction: 'incoming', limit: 1 }),
      api.listDeliveries({ status: 'pending', limit: 20 }),
    ]);
    const newest = incoming.items[0];
    const ofNewest = newest ? (await api.listDeliveries({ message_id: newest.id })).items : [];
    const [identities, webhooks, accounts, delivered, failed, stats] = await Promise.all([
      api.listIdentities(),
      api.listWebhooks(),
      api.listAccounts(),
      api.listDeliveries({ status: 'delivered', limit: 1 }),
      api.listDeliveries({ status: 'failed', since, limit: 5 }),
      api.stats({ since, step: 'hour' }),
    ]);
    return {
      identities: identities.items,
      webhooks: webhooks.items,
      accounts: accounts.items,
      newest,
      ofNewest,
      delivered: delivered.items[0],
      failed: failed.items,
      retried: pending.items.filter(({ lastError }) => lastError !== null),
      stats: fillHours(stats, new Date()),
    };
  });
  useAfterEvents(reload);
  useRepeated(askHomeMs(value.value), reload);

  const home = value.value;
  // The steps stay until the newcomer leaves the view, so that the last tick is seen.
  const isGuided = useRef(false);
  if (home && !home.delivered) isGuided.current = true;
  const refused = home?.ofNewest.find(({ lastError }) => lastError !== null);
  // The steps say it already, and what to do.
  const isSaid = ({ webhookId }: DeliveryItem) => !home?.delivered && webhookId === refused?.webhookId;
  return (
    <>
      <Title>Home</Title>
      <ProblemNote problem={problem.value} />
      {!home && !problem.value && <Loading />}
      {home && isGuided.current && <FirstSteps {...home} refused={refused} reload={reload} />}
      {home?.delivered && <LastDay stats={home.stats} />}
      {home && (
        <NeedsHand
          {...home}
          retried={home.retried.filter((delivery) => !isSaid(delivery))}
          failed={home.failed.filter((delivery) => !isSaid(delivery))}
        />
      )}
    </>
  );
}

interface Seen {
  delivered: DeliveryItem | undefined;
  newest: MessageSummary | undefined;
  webhooks: Webhook[];
  ofNewest: DeliveryItem[];
  retried: DeliveryItem[];
}

/** No event says that a delivery has ended, or that someone made an identity or a webhook elsewhere. */
function askHomeMs(home: Seen | null): number | null {
  if (!home) return null;
  const isWaiting = home.newest !== undefined && home.webhooks.length > 0;
  if (!home.delivered) return isWaiting ? 1000 : 3000;
  const pending = home.ofNewest.filter(({ status }) => status === 'pending');
  return askAgainMs([...pending, ...home.retried], new Date());
}

function LastDay({ stats }: { stats: Stats }) {
  const total = (of: (hour: Stats[number]) => number) => stats.reduce((sum, hour) => sum + of(hour), 0);
  const failed = total((hour) => hour.deliveriesFailed);
  const bounced = total((hour) => hour.bounced);
  return (
    <section class="stack" aria-labelledby="last-day">
      <h2 id="last-day">The last day</h2>
      <dl class="figures">
        <Figure name="Received" value={total((hour) => hour.received)} />
        <Figure name="Sent" value={total((hour) => hour.sent)} />
        <Figure name="Events delivered" value={total((hour) => hour.deliveriesDelivered)} />
        <Figure name="Deliveries failed" value={failed} isBad={failed > 0} />
        <Figure name="Mail bounced" value={bounced} isBad={bounced > 0} />
      </dl>
      <div class="card">
        <Chart stats={stats} />
      </div>
    </section>
  );
}

function Figure({ name, value, isBad = false }: { name: string; value: number; isBad?: boolean }) {
  return (
    <div class={isBad ? 'bad' : ''}>
      <dt>{name}</dt>
      <dd>{value.toLocaleString()}</dd>
    </div>
  );
}

interface NeedsHandProps {
  identities: Identity[];
  webhooks: Webhook[];
  accounts: SmtpAccount[];
  failed: DeliveryItem[];
  retried: DeliveryItem[];
  delivered: DeliveryItem | undefined;
}

function NeedsHand({ identities, webhooks, accounts, failed, retried, delivered }: NeedsHandProps) {
  const off = webhooks.filter(({ disabledReason }) => disabledReason !== null);
  const failedDomains = identities.filter(({ kind, status }) => kind === 'domain' && status === 'failed');
  const losing = identities.filter((identity) => graceEnd(identity) !== undefined);
  const refused = webhooks.flatMap((webhook) => {
    const last = retried.find(({ webhookId }) => webhookId === webhook.id);
    return last ? [{ ...webhook, last }] : [];
  });
  const broken = accounts.filter((account) => errorOf(account) !== null);
  const isCalm = [off, failedDomains, losing, failed, refused, broken].every(({ length }) => length === 0);
  if (isCalm && !delivered) return null;
  return (
    <section class="stack" aria-labelledby="hand">
      <h2 id="hand">What needs attention</h2>
      {isCalm && (
        <p class="soft">
          Nothing. All webhooks are on, all accounts work, and no delivery failed in the last day.
        </p>
      )}
      <ul class="hand">
        {off.map(({ id, url, disabledReason }) => (
          <Hand key={id} state="off">
            The webhook <Link to={`webhooks/${id}`}>{url}</Link>{' '}
            {disabledReason === 'gone'
              ? 'answered 410 and was switched off.'
              : 'failed for days and was switched off.'}
          </Hand>
        ))}
        {refused.map(({ id, url, last }) => (
          <Hand key={id} state="failing">
            The webhook <Link to={`webhooks/${id}`}>{url}</Link> {describeLast(last)}.{' '}
            <NextTry at={last.nextAttemptAt} />
          </Hand>
        ))}
        {broken.map((account) => (
          <Hand key={account.id} state="failing">
            The account <Link to={`accounts/${account.id}`}>{account.label}</Link> does not work:{' '}
            {errorOf(account)?.message}
          </Hand>
        ))}
        {failedDomains.map(({ id, value }) => (
          <Hand key={id} state="failed">
            The domain <Link to={`identities/${id}`}>{value}</Link> is not verified: DNS records are missing.
          </Hand>
        ))}
        {losing.map((identity) => (
          <Hand key={identity.id} state="records">
            The domain <Link to={`identities/${identity.id}`}>{identity.value}</Link> lost DNS records. It
            stays verified until <When at={graceEnd(identity) ?? ''} />.
          </Hand>
        ))}
        {failed.map(({ id, subject, lastError, lastResponseStatus, messageId }) => (
          <Hand key={id} state="failed">
            {messageId ? (
              <Link to={`messages/${messageId}?tries=${id}`}>{subject ?? '(no subject)'}</Link>
            ) : (
              (subject ?? 'An event')
            )}{' '}
            was not delivered: {lastResponseStatus ? `the webhook answered ${lastResponseStatus}` : lastError}
            .
          </Hand>
        ))}
      </ul>
    </section>
  );
}

/** Why an account cannot be used. */
function errorOf({ send, receive }: SmtpAccount): SmtpAccount['send']['error'] {
  return send.error ?? receive.error;
}

/** A verified domain that lost a required record stays verified until this time. */
function graceEnd(identity: Identity): string | undefined {
  if (identity.kind !== 'domain' || identity.status !== 'verified') return undefined;
  return readRecords(identity).find(({ graceUntil }) => graceUntil !== undefined)?.graceUntil;
}

function describeLast({ lastError, lastResponseStatus }: DeliveryItem): string {
  if (lastResponseStatus) return `refused an event (it answered ${lastResponseStatus})`;
  return `does not answer (${lastError})`;
}

function Hand({ state, children }: { state: string; children: ComponentChildren }) {
  return (
    <li class="note bad">
      <Badge state={state} tone="bad" /> {children}
    </li>
  );
}
