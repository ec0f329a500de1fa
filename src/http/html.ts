/** HTML as text. Guarantee: `html` escapes every value except the results of `html` itself. */
export type Markup = { readonly markup: string };
export type HtmlValue = Markup | string | number | false | undefined | HtmlValue[];

export function html(strings: TemplateStringsArray, ...values: HtmlValue[]): Markup {
  return { markup: strings.map((text, index) => text + escapeHtml(values[index])).join('') };
}

function escapeHtml(value: HtmlValue): string {
  if (value === undefined || value === false) return '';
  if (Array.isArray(value)) return value.map(escapeHtml).join('');
  if (typeof value === 'object') return value.markup;
  return String(value).replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
