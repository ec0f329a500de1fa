/** The events there are, and the shape of what a webhook is sent for each. */
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
    description: 'JSON Schema of what is POSTed; null until the event is supported.',
  }),
});

export const eventTypes: readonly Static<typeof EventType>[] = [
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
