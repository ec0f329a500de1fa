/**
 * The hooks that providers call, with mail that came in and with reports. Guarantees: nothing of a call is kept unless its proof was
 * checked (`providers/read-call.ts`); what a call does and the key of the call are committed together, so a call that comes again does
 * nothing; the answer 200 follows the commit.
 */
import type { Readable } from 'node:stream';
import { errorCodes, type FastifyReply, type FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { transaction } from '../../db/client.ts';
import type { PaceLimits } from '../../lib/pace.ts';
import type { Sealer } from '../../lib/secrets.ts';
import type { MailWork } from '../../mailwork/mailwork.ts';
import { Problem } from '../../problems.ts';
import type { HookContent, HookPath, ProvidedMail } from '../../providers/hook.ts';
import { readCall } from '../../providers/read-call.ts';
import type { Sns } from '../../providers/sns.ts';
import { type AcceptParts, acceptMail } from '../../receiving/accept.ts';
import { type RoutedRecipient, routeVouched } from '../../receiving/route.ts';
import { applyProviderReports, type ProviderReportParts } from '../../sending/provider-reports.ts';
import { isTakenCall, openCredentials, recordCall, type SealedProvider } from '../../store/providers.ts';
import { BodyMemory } from '../body-memory.ts';
import { abortOnClose } from '../client-gone.ts';
import { toProblem } from '../errors.ts';
import type { App } from '../fastify.ts';
import { readMessageBody } from '../message-body.ts';

/** Memory for large bodies: in total, and for each owner. */
const memoryLimits = { inAll: 128 * 1024 * 1024, perOwner: 64 * 1024 * 1024, slowMs: 10_000 };
const smallBytes = 64 * 1024;
const bodyPace: PaceLimits = {
  dataTimeoutMs: 30_000,
  dataPortionBytes: 64 * 1024,
  messageTimeoutMs: 120_000,
};
const maxRecipients = 100;

interface HookParts {
  mailWork: Pick<MailWork, 'readHook'>;
  sealer: Sealer;
  mail: AcceptParts;
  reports: ProviderReportParts;
  sns: Sns;
  maxMessageBytes: number;
}

/** Needs a fastify scope of its own: its content type parser takes bodies of any type. */
export async function providerHookRoutes(app: App, parts: HookParts): Promise<void> {
  const { mail, maxMessageBytes } = parts;
  const memory = new BodyMemory(memoryLimits);
  // In a form or in JSON a message is longer than it is.
  const maxBytes = Math.ceil(1.4 * maxMessageBytes) + 1024 * 1024;
  app.decorateRequest('unreadBody', null);
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('*', (request, payload: Readable, done) => {
    request.unreadBody = payload;
    done(null);
  });
  app.addHook('onError', async (request, _reply, error) => {
    const { ownerId, id: requestId } = request;
    if (ownerId === '') return;
    const { code, status } = toProblem(error, maxBytes);
    mail.mailLog.refusedByApi({ reason: code, status, ownerId, requestId });
  });

  async function readBody(
    request: FastifyRequest,
    reply: FastifyReply,
    use: (body: Buffer) => Promise<void>,
  ) {
    const bytes = Number(request.headers['content-length'] ?? maxBytes);
    if (bytes > maxBytes) throw new errorCodes.FST_ERR_CTP_BODY_TOO_LARGE();
    const { ownerId } = request;
    const isLarge = bytes > smallBytes;
    using _share = isLarge ? await memory.take(ownerId, bytes, abortOnClose(reply)) : undefined;
    const read = (cut?: AbortSignal) =>
      readMessageBody(request.unreadBody ?? request.raw, bytes, bodyPace, cut);
    await use(isLarge ? await memory.read(ownerId, bytes, read) : await read());
  }

  function addHook(url: string, path: HookPath): void {
    app.post<{ Params: { secret: string } }>(
      url,
      {
        config: { access: 'hook' },
        bodyLimit: maxBytes,
        // Hidden: only the provider calls it, and each provider in a form of its own.
        schema: { hide: true, response: { 200: Type.Object({}) } },
      },
      async (request, reply) => {
        const { provider } = request;
        if (!provider) throw new Problem('hook_refused');
        await readBody(request, reply, async (body) => {
          const content = await readContent(parts, request, provider, path, body);
          if (await isTakenCall(mail.sql, provider, content.callKey)) return;
          if (content.mail) await takeMail(parts, request, provider, content, content.mail);
          else await takeReports(parts, provider, content);
        });
        return {};
      },
    );
  }

  addHook('/hooks/:secret/inbound', 'inbound');
  addHook('/hooks/:secret/inbound/mime', 'inbound');
  addHook('/hooks/:secret/events', 'events');
}

async function readContent(
  { sealer, sns, mailWork }: HookParts,
  { headers }: FastifyRequest,
  provider: SealedProvider,
  path: HookPath,
  raw: Buffer,
): Promise<HookContent> {
  const credentials = openCredentials(sealer, provider);
  const call = {
    ...{ path, raw, nowMs: Date.now() },
    body: await mailWork.readHook(raw, headers['content-type'] ?? '', provider.ownerId),
    header: (name: string) => [headers[name] ?? []].flat()[0],
  };
  const read = await readCall(credentials, call, sns);
  if (read === 'refused') throw new Problem('hook_refused');
  if (read === 'unreachable') throw new Problem('signer_unreachable', { headers: { 'retry-after': '60' } });
  if ('fault' in read) throw new Problem('hook_incomplete', { detail: read.fault });
  return read.content;
}

async function takeMail(
  { mail: parts, maxMessageBytes }: HookParts,
  { id: requestId, span }: FastifyRequest,
  provider: SealedProvider,
  { callKey }: HookContent,
  { raw, mailFrom, recipients: addresses }: ProvidedMail,
): Promise<void> {
  const { ownerId } = provider;
  if (raw.length > maxMessageBytes)
    throw new Problem('body_too_large', { detail: `A message can have up to ${maxMessageBytes} bytes.` });
  const envelope = { mailFrom, remoteIp: null, helo: null, tls: null };
  const recipients = () => route(parts, ownerId, addresses);
  const given = { source: 'provider', raw, envelope, recipients, ownerId, isVouched: true } as const;
  await acceptMail(parts, { ...given, request: span, requestId }, async (examine, record) => {
    const examined = await examine();
    await transaction(parts.sql, async (sql) => {
      if (!(await recordCall(sql, provider, callKey))) return;
      const ids = await record(sql, examined);
      if (ids.length === 0) throw unknownRecipients(addresses);
    });
  });
}

/** Of several recipients those that the owner has: the provider named the others for somebody else's mail. */
async function route(
  { sql }: AcceptParts,
  ownerId: string,
  addresses: readonly string[],
): Promise<RoutedRecipient[]> {
  const routed: RoutedRecipient[] = [];
  for (const address of new Set(addresses.slice(0, maxRecipients))) {
    const found = await routeVouched(sql, address, ownerId);
    if (found !== 'unknown') routed.push(found);
  }
  if (routed.length === 0) throw unknownRecipients(addresses);
  return routed;
}

function unknownRecipients(addresses: readonly string[]): Problem {
  const named = addresses.slice(0, 3).map((address) => `"${address.slice(0, 320)}"`);
  const detail = `None of your identities receives mail for ${named.join(', ') || 'a recipient that is not named'}. Create the identity with POST /identities.`;
  return new Problem('unknown_recipient', { detail });
}

async function takeReports(
  { reports: parts }: HookParts,
  provider: SealedProvider,
  { callKey, reports }: HookContent,
): Promise<void> {
  const outcome = await applyProviderReports(parts, provider.ownerId, reports, (sql) =>
    recordCall(sql, provider, callKey),
  );
  if (outcome === 'early') throw new Problem('report_too_early', { headers: { 'retry-after': '5' } });
}
