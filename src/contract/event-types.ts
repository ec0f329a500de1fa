/** The events there are, and the shape of what a webhook is sent for each. */
import type { TSchema } from 'typebox';
import { MessageReceived } from './payload.ts';

export const eventNames = [
  'message.received',
  'message.sent',
  'message.delivered',
  'message.bounced',
] as const;
type EventName = (typeof eventNames)[number];

interface EventType {
  name: EventName;
  availability: 'supported' | 'coming_soon';
  description: string;
  /** JSON Schema of the body that is POSTed; null while the event is not there yet. */
  schema: TSchema | null;
}

export const eventTypes: readonly EventType[] = [
  {
    name: 'message.received',
    availability: 'supported',
    description: 'Mail has arrived for an identity.',
    schema: MessageReceived,
  },
  {
    name: 'message.sent',
    availability: 'coming_soon',
    description: 'A message of an identity has been handed to the next mail server.',
    schema: null,
  },
  {
    name: 'message.delivered',
    availability: 'coming_soon',
    description: "A message of an identity has reached the recipient's mail server.",
    schema: null,
  },
  {
    name: 'message.bounced',
    availability: 'coming_soon',
    description: 'A message of an identity could not be delivered.',
    schema: null,
  },
];
