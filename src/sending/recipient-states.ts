/** The states of a recipient, and the status of a message that follows from them. Pure. */

export type RecipientStatus = 'queued' | 'sent' | 'delivered' | 'bounced' | 'suppressed' | 'cancelled';

/** `delivered` is not the end: a server that took the message may return it later. */
const nextStatuses: Record<RecipientStatus, readonly RecipientStatus[]> = {
  queued: ['sent', 'bounced', 'suppressed', 'cancelled'],
  sent: ['delivered', 'bounced'],
  delivered: ['bounced'],
  bounced: [],
  suppressed: [],
  cancelled: [],
};

/** False: what came is ignored. */
export function canMove(from: RecipientStatus, to: RecipientStatus): boolean {
  return nextStatuses[from].includes(to);
}

/** Of a message with at least one recipient. */
export function decideSendingStatus(statuses: readonly RecipientStatus[]): RecipientStatus | 'mixed' {
  if (statuses.includes('queued')) return 'queued';
  const [first, ...others] = new Set(statuses);
  if (first && others.length === 0) return first;
  return statuses.every((status) => status === 'sent' || status === 'delivered') ? 'sent' : 'mixed';
}
