/** Small things that every view shows: a state, a time, a text to copy, a problem, an empty list. */
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { copyText } from '../copy-text.ts';
import { useRepeated } from '../page.ts';
import { type ApiProblem, isFaultOf } from '../request.ts';
import { hrefOf, navigate } from '../route.ts';
import { formatUntil, formatWhen, type Tone, toneOf } from '../words.ts';

export function Horn() {
  return (
    <svg
      class="horn"
      viewBox="0 0 32 24"
      width="28"
      height="21"
      aria-hidden="true"
      fill="none"
      stroke="currentColor"
      stroke-width="2.4"
      stroke-linecap="round"
      stroke-linejoin="round"
    >
      <circle cx="13" cy="14" r="7" />
      <path d="M3 5h12c6 0 9-1 13-4v11c-3-3-5-4-8-4" />
    </svg>
  );
}

interface LinkProps {
  to: string;
  class?: string;
  children: ComponentChildren;
  current?: boolean;
  label?: string;
}

/** A link to another view: a click does not load the page again, and a new tab still works. */
export function Link({ to, children, current = false, label, class: name }: LinkProps) {
  const follow = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    navigate(to);
  };
  return (
    <a
      class={name}
      href={hrefOf(to)}
      onClick={follow}
      aria-current={current ? 'page' : undefined}
      aria-label={label}
    >
      {children}
    </a>
  );
}

/** The heading of a view. It takes the focus, so that a screen reader says where a link led. */
export function Title({ children, actions }: { children: ComponentChildren; actions?: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    heading.current?.focus({ preventScroll: true });
    document.title = `${heading.current?.textContent ?? ''} · Posthorn`;
  }, []);
  return (
    <header class="title">
      <h1 ref={heading} tabIndex={-1}>
        {children}
      </h1>
      {actions && <div class="actions">{actions}</div>}
    </header>
  );
}

export function Badge({ state, tone = toneOf(state) }: { state: string; tone?: Tone }) {
  return <span class={`badge ${tone}`}>{state}</span>;
}

export function When({ at }: { at: string }) {
  const date = new Date(at);
  return (
    <time dateTime={at} title={date.toLocaleString()}>
      {formatWhen(date, new Date())}
    </time>
  );
}

/** Counts down. Nothing, if no further try is planned. */
export function NextTry({ at }: { at: string | null }) {
  const now = useSignal(new Date());
  useRepeated(at === null ? null : 1000, () => {
    now.value = new Date();
  });
  if (at === null) return null;
  const date = new Date(at);
  return (
    <>
      The next try is{' '}
      <time dateTime={at} title={date.toLocaleString()}>
        {formatUntil(date, now.value)}
      </time>
      .
    </>
  );
}

/** `what` names the value for a screen reader: "Copy the value of the MX record". */
export function Copy({ text, what }: { text: string; what: string }) {
  const label = useSignal('Copy');
  const copy = async () => {
    const isCopied = await copyText(text);
    label.value = isCopied ? 'Copied' : 'Select the text to copy it';
    setTimeout(
      () => {
        label.value = 'Copy';
      },
      isCopied ? 2000 : 8000,
    );
  };
  return (
    <button type="button" class="copy" onClick={copy}>
      <span aria-live="polite">{label.value}</span>
      <span class="hidden"> {what}</span>
    </button>
  );
}

/** A long text scrolls inside its frame. Browsers scroll by keyboard only what can have the focus. */
export function LongText({ text, what }: { text: string; what: string }) {
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset is for forms.
    // biome-ignore lint/a11y/noNoninteractiveTabindex: see above.
    <div class="long" role="group" aria-label={what} tabIndex={0}>
      <pre>{text}</pre>
    </div>
  );
}

export function CodeBlock({ text, what }: { text: string; what: string }) {
  return (
    <div class="code">
      <LongText text={text} what={what} />
      <Copy text={text} what={what} />
    </div>
  );
}

/** A problem as the API wrote it, without the faults that are shown at their fields. */
export function ProblemNote({
  problem,
  fields = [],
}: {
  problem: ApiProblem | null;
  fields?: readonly string[];
}) {
  if (!problem) return null;
  const others = problem.errors.filter((fault) => !fields.some((name) => isFaultOf(fault, name)));
  // The words of the API are at the fields. What is left of the problem is for programs: "the body", "JSON Pointer".
  if (problem.errors.length > 0 && others.length === 0)
    return <p class="note bad">See what is wrong at the fields in red.</p>;
  return (
    <div class="note bad" role="alert">
      <strong>{problem.message}</strong>
      <p>{problem.detail}</p>
      {others.length > 0 && (
        <ul>
          {others.map(({ pointer, message }) => (
            <li key={pointer + message}>{message}</li>
          ))}
        </ul>
      )}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

export function Loading() {
  return (
    <p class="loading" role="status">
      Loading …
    </p>
  );
}
