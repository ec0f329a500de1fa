/** The `sql` tag that store functions take: sql`…` is a query that runs when it is awaited, or a part of another query. */
import type { Connection } from './connection.ts';
import { Fragment, type Value, writeStatement } from './sql.ts';

// biome-ignore lint/suspicious/noExplicitAny: rows without a declared type, and errors.
type Unknown = any;

/** `count`: how many rows were returned or changed. */
type Rows<Row> = Row[] & { count: number };

export interface Sql {
  <List extends readonly object[] = Unknown[]>(
    strings: TemplateStringsArray,
    ...values: (Value | Fragment)[]
  ): Query<List[number]>;
  /** One or more statements without parameters and without a time limit. */
  script(text: string): Promise<void>;
}

/** Runs `work` with a connection that nobody else uses meanwhile. */
export type UseConnection = <T>(work: (connection: Connection) => Promise<T>) => Promise<T>;

export function makeSql(use: UseConnection): Sql {
  const tag = (strings: TemplateStringsArray, ...values: (Value | Fragment)[]) =>
    new Query<Unknown>(use, strings, values);
  return Object.assign(tag as Pick<Sql, never> as Sql, {
    script: (text: string) => use((connection) => connection.runScript(text)),
  });
}

class Query<Row> extends Fragment implements Promise<Rows<Row>> {
  readonly [Symbol.toStringTag] = 'Query';
  readonly #use: UseConnection;
  #result: Promise<Rows<Row>> | undefined;

  constructor(use: UseConnection, strings: readonly string[], values: readonly (Value | Fragment)[]) {
    super(strings, values);
    this.#use = use;
  }

  /** Passes on each row when it arrives, so that many large rows are never in memory together. */
  forEach(take: (row: Row) => void): Promise<void> {
    return this.#use((connection) => connection.runForEach(writeStatement(this), take));
  }

  // biome-ignore lint/suspicious/noThenProperty: a query is a promise that starts when it is awaited.
  then<A = Rows<Row>, B = never>(
    onResult?: ((rows: Rows<Row>) => A | PromiseLike<A>) | null,
    onError?: ((error: Unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.#result ??= this.#run();
    return this.#result.then(onResult, onError);
  }

  catch<B = never>(onError?: ((error: Unknown) => B | PromiseLike<B>) | null): Promise<Rows<Row> | B> {
    return this.then(null, onError);
  }

  finally(onEnd?: (() => void) | null): Promise<Rows<Row>> {
    return this.then().finally(onEnd);
  }

  async #run(): Promise<Rows<Row>> {
    const { rows, rowCount } = await this.#use((connection) => connection.run(writeStatement(this)));
    return Object.assign(rows as Row[], { count: rowCount ?? 0 });
  }
}
