/** The events that exist, and the schema of the body that a webhook receives for each. */
import { type Static, type TSchema, Type } from 'typebox';
import {
  MessageBounced,
  MessageComplained,
  MessageDelivered,
  MessageReceived,
  MessageSent,
} from './payload.ts';
import { describe, oneOf } from './schemas.ts';

export const eventNames = [
  'message.received',
  'message.sent',
  'message.delivered',
  'message.bounced',
  'message.complained',
] as const;

export const EventType = Type.Object({
  name: describe(oneOf(eventNames), 'What webhooks list in `events`.'),
  availability: describe(oneOf(['supported', 'coming_soon']), 'Whether this event happens already.'),
  description: Type.String(),
  schema: Type.Unsafe<TSchema | null>({
    description: 'JSON Schema of the body that webhooks receive. Null until the event is supported.',
  }),
});

export const eventTypes: readonly Static<typeof EventType>[] = [
  {
    name: 'message.received',
    availability: 'supported',
    description: 'An identity received a message.',
    schema: MessageReceived,
  },
  {
    name: 'message.sent',
    availability: 'supported',
    description: 'The next mail server took a message for a recipient.',
    schema: MessageSent,
  },
  {
    name: 'message.delivered',
    availability: 'supported',
    description: "The recipient's own mail server took a message.",
    schema: MessageDelivered,
  },
  {
    name: 'message.bounced',
    availability: 'supported',
    description: 'A message could not be delivered to a recipient, and is not tried again.',
    schema: MessageBounced,
  },
  {
    name: 'message.complained',
    availability: 'supported',
    description: 'A recipient reported a message as unwanted.',
    schema: MessageComplained,
  },
];
