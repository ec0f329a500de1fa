/** Writes the forms of bodies (contract/forms.ts) into the OpenAPI document. */

/** Returns the document with the forms instead of the objects that validate. */
export function writeForms<Document>(value: Document): Document {
  const write = (one: unknown): unknown => {
    if (Array.isArray(one)) return one.map(write);
    if (typeof one !== 'object' || one === null) return one;
    if (!('documentedAs' in one))
      return Object.fromEntries(Object.entries(one).map(([key, inner]) => [key, write(inner)]));
    const { description, examples, documentedAs } = one as Record<string, unknown>;
    return {
      ...(description === undefined ? {} : { description }),
      ...(write(documentedAs) as object),
      ...(examples === undefined ? {} : { examples }),
    };
  };
  return write(value) as Document;
}

/** Returns the forms by their titles. */
export function collectForms(value: unknown): Record<string, object> {
  if (typeof value !== 'object' || value === null) return {};
  const inside = Object.values(value).map(collectForms);
  const { oneOf, anyOf } = value as { oneOf?: unknown; anyOf?: unknown };
  const titled = [oneOf, anyOf]
    .flat()
    .filter((form): form is { title: string } => typeof form === 'object' && form !== null && 'title' in form)
    .map((form) => [form.title, form]);
  return Object.assign({}, ...inside, Object.fromEntries(titled));
}
