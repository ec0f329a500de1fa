/**
 * The building blocks of request and answer schemas. A schema here validates, types and documents at once.
 * Answers use `type: [.., 'null']` rather than unions: the serialiser is twice as fast on them.
 */
import { type Static, type TProperties, type TSchema, type TUnsafe, Type } from 'typebox';

export const Uuid = Type.String({ format: 'uuid' });
export const NullableUuid = Type.Unsafe<string | null>({ type: ['string', 'null'], format: 'uuid' });
export const NullableString = Type.Unsafe<string | null>({ type: ['string', 'null'] });
export const NullableBoolean = Type.Unsafe<boolean | null>({ type: ['boolean', 'null'] });
export const Timestamp = Type.String({ format: 'date-time' });
export const NullableTimestamp = Type.Unsafe<string | null>({
  type: ['string', 'null'],
  format: 'date-time',
});

/** Text that PostgreSQL can keep: no NUL. */
export function nullableText(maxLength: number) {
  return Type.Unsafe<string | null>({ type: ['string', 'null'], maxLength, format: 'text' });
}

/** `Type.Enum` with the literal types kept. */
export function oneOf<const Values extends readonly string[]>(values: Values): TUnsafe<Values[number]> {
  return Type.Unsafe<Values[number]>({ type: 'string', enum: values });
}

export const IdParams = Type.Object({ id: Uuid });

/** A body: closed, so that an unknown field is refused by name; the example is what the tests send. */
export function body<Properties extends Record<string, TSchema>>(
  properties: Properties,
  options: { example: unknown; readOnly?: readonly string[] },
) {
  return Type.Object(properties, {
    additionalProperties: false,
    examples: [options.example],
    ...(options.readOnly ? { 'x-read-only': options.readOnly } : {}),
  });
}

export const maxPage = 1000;

/** Lists that grow with use have shorter pages. */
export const maxShortPage = 200;
export const defaultShortPage = 50;

/** Query of a list route. */
export function listQuery<Filters extends Record<string, TSchema>>(
  filters: Filters,
  size: { max: number; usual: number } = { max: maxPage, usual: maxPage },
) {
  return Type.Object(
    {
      limit: Type.Optional(
        Type.Integer({
          minimum: 1,
          maximum: size.max,
          default: size.usual,
          description: 'How many at most.',
        }),
      ),
      cursor: Type.Optional(
        Type.String({
          maxLength: 200,
          format: 'cursor',
          description: 'From the `Link` header of the page before.',
        }),
      ),
      ...filters,
    },
    { additionalProperties: false },
  );
}

/**
 * The schema of an answer that shows a row of the store. It compiles only with exactly the fields of `Row`, each with a schema
 * that allows every value of that field, so that row and answer cannot drift apart.
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
