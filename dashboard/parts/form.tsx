/** Form fields with the problem of the API at the field it belongs to, buttons, and a question before what cannot be undone. */
import { type Signal, useSignal } from '@preact/signals';
import { type ComponentChildren, createContext } from 'preact';
import { useContext, useId, useRef } from 'preact/hooks';
import { useAction } from '../page.ts';
import { type ApiProblem, isFaultOf } from '../request.ts';
import { ProblemNote } from './show.tsx';

/** The problem of the form around the fields. */
const FormProblem = createContext<ApiProblem | null>(null);

/** What the API finds wrong in the field with this name. */
export function useFaults(name: string, given?: ApiProblem | null) {
  const ofForm = useContext(FormProblem);
  const problem = given ?? ofForm;
  return problem?.errors.filter((fault) => isFaultOf(fault, name)) ?? [];
}

interface FieldProps {
  label: string;
  /** Where the field is in the body of the request, such as `url` or `smtp/host`. */
  name: string;
  /** For a field without a `Form`. */
  problem?: ApiProblem | null;
  hint?: ComponentChildren;
}

/** What a label, an input, its hint and its problem need to find each other. */
function useField({ name, problem, hint }: FieldProps) {
  const id = useId();
  const faults = useFaults(name, problem);
  const described = [hint ? `${id}-hint` : '', faults.length ? `${id}-fault` : ''].filter(Boolean).join(' ');
  const attributes = {
    id,
    name,
    'aria-invalid': faults.length > 0,
    'aria-describedby': described || undefined,
  };
  return { id, faults, attributes };
}

function FieldFrame({
  field,
  given,
  children,
}: {
  field: ReturnType<typeof useField>;
  given: FieldProps;
  children: ComponentChildren;
}) {
  return (
    <div class="field">
      <label for={field.id}>{given.label}</label>
      {children}
      {given.hint && (
        <p class="hint" id={`${field.id}-hint`}>
          {given.hint}
        </p>
      )}
      {field.faults.length > 0 && (
        <p class="fault" id={`${field.id}-fault`} role="alert">
          {field.faults.map(({ message }) => message).join(' ')}
        </p>
      )}
    </div>
  );
}

export function TextField(
  given: FieldProps & {
    value: Signal<string>;
    type?: 'text' | 'password' | 'search' | 'url' | 'email' | 'date' | 'datetime-local';
    rows?: number;
    placeholder?: string;
    required?: boolean;
    autocomplete?: string;
  },
) {
  const field = useField(given);
  const { value, type = 'text', rows, placeholder, required, autocomplete = 'off' } = given;
  const shared = {
    ...field.attributes,
    value: value.value,
    placeholder,
    required,
    autocomplete,
    onInput: (event: { currentTarget: { value: string } }) => {
      value.value = event.currentTarget.value;
    },
  };
  return (
    <FieldFrame field={field} given={given}>
      {rows ? (
        <textarea {...shared} rows={rows} />
      ) : (
        <input {...shared} type={type as 'text'} spellcheck={false} />
      )}
    </FieldFrame>
  );
}

export function SelectField(
  given: FieldProps & { value: Signal<string>; options: readonly (readonly [string, string])[] },
) {
  const field = useField(given);
  return (
    <FieldFrame field={field} given={given}>
      <select
        {...field.attributes}
        value={given.value.value}
        onChange={({ currentTarget }) => {
          given.value.value = currentTarget.value;
        }}
      >
        {given.options.map(([value, label]) => (
          <option key={value} value={value}>
            {label}
          </option>
        ))}
      </select>
    </FieldFrame>
  );
}

export function CheckField({ label, value }: { label: string; value: Signal<boolean> }) {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={value.value}
        onChange={({ currentTarget }) => {
          value.value = currentTarget.checked;
        }}
      />
      {label}
    </label>
  );
}

/** A fault of a field is shown there; all others, and the problem itself, at the button. */
export function Form({
  action,
  submit,
  children,
}: {
  action: { busy: Signal<boolean>; problem: Signal<ApiProblem | null>; run(): Promise<void> };
  submit: string;
  children: ComponentChildren;
}) {
  const form = useRef<HTMLFormElement>(null);
  const send = (event: Event) => {
    event.preventDefault();
    action.run();
  };
  const problem = action.problem.value;
  return (
    <form ref={form} onSubmit={send} noValidate>
      <FormProblem.Provider value={problem}>{children}</FormProblem.Provider>
      <ProblemNote problem={problem} fields={namesIn(form.current)} />
      <button type="submit" class="main" disabled={action.busy.value}>
        {submit}
      </button>
    </form>
  );
}

function namesIn(form: HTMLFormElement | null): string[] {
  const named = form?.querySelectorAll<HTMLInputElement | HTMLFieldSetElement>('[name]') ?? [];
  return Array.from(named, ({ name }) => name);
}

/** A button that does one thing at once, and shows the problem where that fails. */
export function ActionButton({
  children,
  act,
  kind = '',
}: {
  children: ComponentChildren;
  act(): Promise<unknown>;
  kind?: '' | 'main';
}) {
  const { busy, problem, run } = useAction(act);
  return (
    <>
      <button type="button" class={kind} disabled={busy.value} onClick={() => run()}>
        {children}
      </button>
      <ProblemNote problem={problem.value} />
    </>
  );
}

/** Asks before it acts. */
export function DangerButton({
  label,
  question,
  act,
}: {
  label: string;
  question: string;
  act(): Promise<unknown>;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const { busy, problem, run } = useAction(async () => {
    await act();
    dialog.current?.close();
  });
  return (
    <>
      <button type="button" class="danger" onClick={() => dialog.current?.showModal()}>
        {label}
      </button>
      <dialog ref={dialog} aria-labelledby={id}>
        <p id={id}>{question}</p>
        <ProblemNote problem={problem.value} />
        <div class="actions">
          <button type="button" class="danger" disabled={busy.value} onClick={() => run()}>
            {label}
          </button>
          <button type="button" onClick={() => dialog.current?.close()}>
            Keep
          </button>
        </div>
      </dialog>
    </>
  );
}

/** A part of a view that opens on request, such as the form to create something. */
export function Disclosure({
  label,
  kind = 'main',
  children,
}: {
  label: string;
  kind?: '' | 'main';
  children(close: () => void): ComponentChildren;
}) {
  const isOpen = useSignal(false);
  const id = useId();
  return (
    <div class="disclosure">
      <button
        type="button"
        class={isOpen.value ? '' : kind}
        aria-expanded={isOpen.value}
        aria-controls={id}
        onClick={() => {
          isOpen.value = !isOpen.value;
        }}
      >
        {isOpen.value ? 'Cancel' : label}
      </button>
      <div id={id} class={isOpen.value ? 'card' : ''}>
        {isOpen.value &&
          children(() => {
            isOpen.value = false;
          })}
      </div>
    </div>
  );
}
