/**
 * Bodies that have one of several forms. The service validates such a body as one object, so that it finds all errors and can explain
 * them (http/validation.ts). The OpenAPI document shows the forms instead (`documentedAs`). Their titles become the names of types in
 * generated clients.
 */
import { type Static, type TProperties, type TSchema, Type } from 'typebox';

export interface Forms {
  documentedAs: Record<string, unknown>;
}

/** By field: the title of the form that has this field and none of the other fields here. */
type Titles = Record<string, string>;

/** Options of an object that needs exactly one of these fields. */
export function exactlyOneOf(properties: TProperties, titles: Titles): Forms & { exactlyOneOf: string[] } {
  const oneOf = Object.keys(titles).map((field) => makeForm(properties, titles, field, [field]));
  return { exactlyOneOf: Object.keys(titles), documentedAs: { oneOf } };
}

/** Options of an object that may have one of these fields. `anyOf`: an object with none of the fields matches each form. */
export function atMostOneOf(properties: TProperties, titles: Titles): Forms & { atMostOneOf: string[] } {
  const anyOf = Object.keys(titles).map((field) => makeForm(properties, titles, field, []));
  return { atMostOneOf: Object.keys(titles), documentedAs: { anyOf } };
}

function makeForm(properties: TProperties, titles: Titles, field: string, needed: string[]): object {
  const kept = Object.entries(properties).filter(([name]) => name === field || !Object.hasOwn(titles, name));
  const whole = Type.Object(Object.fromEntries(kept), { additionalProperties: false });
  const required = [...(whole.required ?? []), ...needed];
  return { title: titles[field], ...whole, ...(required.length > 0 ? { required } : {}) };
}

/** The same object, or null. */
export function orNull<Schema extends TSchema & Forms>(schema: Schema) {
  const documentedAs = Object.fromEntries(
    Object.entries(schema.documentedAs).map(([rule, forms]) => [
      rule,
      [...(forms as object[]), { type: 'null' }],
    ]),
  );
  return Type.Unsafe<Static<Schema> | null>({ ...schema, type: ['object', 'null'], documentedAs });
}
