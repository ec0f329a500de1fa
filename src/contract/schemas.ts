/**
 * The building blocks of request and response schemas. One schema validates, types and documents.
 * Responses use `type: [.., 'null']` instead of unions: the serialiser is twice as fast on them.
 */
import { type Static, type TObject, type TProperties, type TSchema, type TUnsafe, Type } from 'typebox';
import type { Forms } from './forms.ts';

export const Uuid = Type.String({ format: 'uuid' });
export const NullableUuid = Type.Unsafe<string | null>({ type: ['string', 'null'], format: 'uuid' });
export const NullableString = Type.Unsafe<string | null>({ type: ['string', 'null'] });
export const NullableBoolean = Type.Unsafe<boolean | null>({ type: ['boolean', 'null'] });
export const Timestamp = Type.String({ format: 'date-time' });
export const NullableTimestamp = Type.Unsafe<string | null>({
  type: ['string', 'null'],
  format: 'date-time',
});

export function describe<Schema extends TSchema>(
  schema: Schema,
  description: string,
): TUnsafe<Static<Schema>> {
  return Type.Unsafe<Static<Schema>>({ ...schema, description });
}

/** An object of ours that has exactly these keys. */
export function closed<Properties extends TProperties, Options extends object>(
  properties: Properties,
  options?: Options,
): TObject<Properties> & Options {
  return Type.Object(properties, { ...options, additionalProperties: false }) as TObject<Properties> &
    Options;
}

/** The `since` filter of a list. */
export const Since = Type.Optional(describe(Timestamp, 'Only items from this time on.'));

/** Without NUL, which PostgreSQL cannot store. */
export function nullableText(maxLength: number) {
  return Type.Unsafe<string | null>({ type: ['string', 'null'], maxLength, format: 'text' });
}

/** `Type.Enum` that keeps the literal types. */
export function oneOf<const Values extends readonly string[]>(values: Values): TUnsafe<Values[number]> {
  return Type.Unsafe<Values[number]>({ type: 'string', enum: values });
}

export const IdParams = Type.Object({ id: Uuid });

/** The schema of a body. It refuses unknown fields; tests send its example. */
export function body<Properties extends Record<string, TSchema>>(
  properties: Properties,
  options: { example: unknown; readOnly?: readonly string[]; forms?: Forms },
) {
  return Type.Object(properties, {
    additionalProperties: false,
    examples: [options.example],
    ...(options.readOnly ? { 'x-read-only': options.readOnly } : {}),
    ...options.forms,
  });
}

/** The schema of a body that may be missing. Fastify validates a missing body as null. */
export function optionalBody<Properties extends Record<string, TSchema>>(
  properties: Properties,
  options: { example: unknown },
) {
  const schema = body(properties, options);
  return Type.Unsafe<Static<typeof schema> | null | undefined>({ ...schema, type: ['object', 'null'] });
}

export const maxPage = 1000;

/** Messages, events and deliveries: lists that grow with use have shorter pages. */
const maxShortPage = 200;
export const defaultShortPage = 50;

export function listQuery<Filters extends Record<string, TSchema>>(filters: Filters) {
  return pageQuery(filters, maxPage, maxPage);
}

export function shortListQuery<Filters extends Record<string, TSchema>>(filters: Filters) {
  return pageQuery(filters, maxShortPage, defaultShortPage);
}

function pageQuery<Filters extends Record<string, TSchema>>(
  filters: Filters,
  maximum: number,
  usual: number,
) {
  const limit = Type.Integer({ minimum: 1, maximum, default: usual, description: 'Items per page.' });
  const cursor = Type.String({
    maxLength: 200,
    format: 'cursor',
    description: 'Where the page starts: part of the URL in the `Link` header of the previous page.',
  });
  return Type.Object(
    { limit: Type.Optional(limit), cursor: Type.Optional(cursor), ...filters },
    { additionalProperties: false },
  );
}

/**
 * The schema of a response that contains a row of the store. It compiles only if it has exactly the fields of `Row` and every
 * schema allows every value of its field, so that rows and responses cannot drift apart.
 */
export function rowSchema<Row>() {
  return <Fields extends TProperties>(fields: Fields & FieldsOf<Row, Fields>) =>
    Type.Object(fields as Fields);
}

type FieldsOf<Row, Fields extends TProperties> = {
  [Key in keyof Row | keyof Fields]: Key extends keyof Row & keyof Fields
    ? Row[Key] extends Static<Fields[Key]>
      ? Fields[Key]
      : never
    : never;
};
