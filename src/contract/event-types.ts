/** The events that exist, and the schema of the body that a webhook receives for each. */
import { type Static, type TSchema, Type } from 'typebox';
import { MessageReceived } from './payload.ts';
import { oneOf } from './schemas.ts';

export const eventNames = [
  'message.received',
  'message.sent',
  'message.delivered',
  'message.bounced',
] as const;

export const EventType = Type.Object({
  name: oneOf(eventNames),
  availability: oneOf(['supported', 'coming_soon']),
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
    availability: 'coming_soon',
    description: 'A message from an identity was handed to the next mail server.',
    schema: null,
  },
  {
    name: 'message.delivered',
    availability: 'coming_soon',
    description: "A message from an identity was accepted by the recipient's mail server.",
    schema: null,
  },
  {
    name: 'message.bounced',
    availability: 'coming_soon',
    description: 'A message from an identity could not be delivered.',
    schema: null,
  },
];
