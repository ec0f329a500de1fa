/** Makes reports out of what providers say. Pure. Guarantee: every text is one well-formed line without NUL, within a limit. */
import { readLine, readReply, readStatus, readTyped } from '../mime/report-fields.ts';
import type { ProviderReport } from '../store/send-reports.ts';

interface Said {
  message: ProviderReport['message'] | null;
  address: string | null;
  outcome: ProviderReport['outcome'] | null;
  action: string | null;
  /** Such as 5.1.1, if the provider gives it apart. */
  status?: string | null;
  /** What the recipient's server replied, perhaps with `smtp;` in front. */
  diagnostic?: string | null;
  remoteMta?: string | null;
  bounceType?: ProviderReport['bounceType'];
}

/** Empty: the provider does not say of whom, or says nothing that counts. */
export function makeReport(said: Said): ProviderReport[] {
  const { message, address, outcome } = said;
  if (!message || address === null || outcome === null) return [];
  const reply = readReply(readTyped(said.diagnostic ?? undefined));
  return [
    {
      ...{ message, address, outcome },
      action: readLine(said.action ?? undefined) ?? outcome,
      reply: {
        code: reply?.code ?? null,
        enhanced: readStatus(said.status ?? undefined) ?? reply?.enhanced ?? null,
      },
      diagnostic: readLine(said.diagnostic ?? undefined),
      remoteMta: readLine(said.remoteMta ?? undefined),
      bounceType: said.bounceType ?? null,
    },
  ];
}

/** With its angle brackets, which some providers leave out. */
export function byMessageId(text: string | null): ProviderReport['message'] | null {
  const id = text?.trim() ?? '';
  if (id === '' || id.length > 1000) return null;
  return { messageId: id.startsWith('<') ? id : `<${id}>` };
}
