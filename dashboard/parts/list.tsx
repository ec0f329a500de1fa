/** A list of the API as a table: page by page, with what to say while it loads, when it is empty, and when it fails. */
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import type { Listed } from '../api.ts';
import { useLoaded } from '../page.ts';
import type { ApiProblem } from '../request.ts';
import { ActionButton } from './form.tsx';
import { Empty, Loading, ProblemNote } from './show.tsx';

export interface Listing<T> {
  /** Null while the first page loads. */
  items: T[] | null;
  problem: ApiProblem | null;
  /** Begins again with the first page. */
  reload(): Promise<void>;
  /** Null: all pages are here. */
  more: (() => Promise<void>) | null;
}

export function useListed<T>(load: (cursor?: string) => Promise<Listed<T>>): Listing<T> {
  const further = useSignal<Listed<T> | null>(null);
  const first = useLoaded(async () => {
    const listed = await load();
    further.value = null;
    return listed;
  });
  const last = further.value ?? first.value.value;
  const cursor = last?.next ?? null;
  const more = async () => {
    const listed = await load(cursor ?? undefined);
    further.value = { items: [...(further.value?.items ?? []), ...listed.items], next: listed.next };
  };
  return {
    items: first.value.value && [...first.value.value.items, ...(further.value?.items ?? [])],
    problem: first.problem.value,
    reload: first.reload,
    more: cursor === null ? null : more,
  };
}

interface ListTableProps<T> {
  listing: Listing<T>;
  head: readonly string[];
  empty: ComponentChildren;
  /** A row. */
  children(item: T): ComponentChildren;
}

export function ListTable<T>({ listing, head, empty, children }: ListTableProps<T>) {
  const { items, problem, more } = listing;
  return (
    <>
      <ProblemNote problem={problem} />
      {!items && !problem && <Loading />}
      {items?.length === 0 && <Empty>{empty}</Empty>}
      {items && items.length > 0 && <Table head={head}>{items.map(children)}</Table>}
      {more && <ActionButton act={more}>Show more</ActionButton>}
    </>
  );
}

/** An empty name in `head` is the column of the buttons. On a phone each row is a block, and the style writes the names in it. */
export function Table({
  head,
  kind = '',
  children,
}: {
  head: readonly string[];
  kind?: string;
  children: ComponentChildren;
}) {
  const names = head.map((name, n) => [`--column-${n + 1}`, name && JSON.stringify(`${name}: `)]);
  return (
    <div class="scroll">
      <table class={`fold ${kind}`} style={Object.fromEntries(names)}>
        <thead>
          <tr>
            {head.map((name) => (
              <th key={name}>{name || <span class="hidden">Actions</span>}</th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
