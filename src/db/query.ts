/** The `sql` tag that store functions are given: sql`…` is a query that runs when it is awaited, or a part of another one. */
import { Fragment, type Statement, type Value, writeStatement } from './sql.ts';

// biome-ignore lint/suspicious/noExplicitAny: of rows that nobody described, and of errors.
type Unknown = any;

/** `count`: how many rows were returned or changed. */
type Rows<Row> = Row[] & { count: number };

export interface Sql {
  <List extends readonly object[] = Unknown[]>(
    strings: TemplateStringsArray,
    ...values: (Value | Fragment)[]
  ): Query<List[number]>;
  /** One or more statements without parameters, which may take as long as they like. */
  script(text: string): Promise<void>;
}

/** Where queries run: a connection, a transaction or a pool. */
export interface Runner {
  ask(statement: Statement): Promise<{ rows: unknown[]; rowCount: number | null }>;
  askRows(statement: Statement, take: (row: never) => void): Promise<void>;
  runScript(text: string): Promise<void>;
}

export function makeSql(runner: Runner): Sql {
  const tag = (strings: TemplateStringsArray, ...values: (Value | Fragment)[]) =>
    new Query<Unknown>(runner, strings, values);
  return Object.assign(tag as Pick<Sql, never> as Sql, {
    script: (text: string) => runner.runScript(text),
  });
}

class Query<Row> extends Fragment implements Promise<Rows<Row>> {
  readonly [Symbol.toStringTag] = 'Query';
  readonly #runner: Runner;
  #answer: Promise<Rows<Row>> | undefined;

  constructor(runner: Runner, strings: readonly string[], values: readonly (Value | Fragment)[]) {
    super(strings, values);
    this.#runner = runner;
  }

  /** Hands over each row as it is read, so that many large ones are never in memory together. */
  async forEach(take: (row: Row) => void): Promise<void> {
    return this.#runner.askRows(writeStatement(this), take);
  }

  // biome-ignore lint/suspicious/noThenProperty: to be awaited is what it is for.
  then<A = Rows<Row>, B = never>(
    onAnswer?: ((rows: Rows<Row>) => A | PromiseLike<A>) | null,
    onError?: ((error: Unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.#answer ??= this.#run();
    return this.#answer.then(onAnswer, onError);
  }

  catch<B = never>(onError?: ((error: Unknown) => B | PromiseLike<B>) | null): Promise<Rows<Row> | B> {
    return this.then(null, onError);
  }

  finally(onEnd?: (() => void) | null): Promise<Rows<Row>> {
    return this.then().finally(onEnd);
  }

  async #run(): Promise<Rows<Row>> {
    const { rows, rowCount } = await this.#runner.ask(writeStatement(this));
    return Object.assign(rows as Row[], { count: rowCount ?? 0 });
  }
}
