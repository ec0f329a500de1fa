/** One request to the public API with the session of this browser. An answer that is an error becomes an `ApiProblem`. */

export interface FieldProblem {
  pointer: string;
  code: string;
  message: string;
}

/** Whether a fault belongs to the field with this name, such as `smtp/host`, or to something inside the field. */
export function isFaultOf({ pointer }: FieldProblem, name: string): boolean {
  return `${pointer}/`.startsWith(`/${name}/`);
}

export class ApiProblem extends Error {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly errors: readonly FieldProblem[];

  constructor(
    status: number,
    given: { title: string; detail: string; code: string; errors?: FieldProblem[] },
  ) {
    super(given.title);
    this.status = status;
    this.code = given.code;
    this.detail = given.detail;
    this.errors = given.errors ?? [];
  }
}

export interface RequestOptions {
  query?: Record<string, string | number | undefined>;
  /** Sent as JSON; text of another type is sent unchanged with `type`. */
  body?: unknown;
  type?: string;
}

export interface Requester {
  /** With a slash at the end. */
  base: string;
  csrfToken(): string;
  /** The session has ended. */
  onSignedOut(): void;
}

export async function request(
  { base, csrfToken, onSignedOut }: Requester,
  method: string,
  path: string,
  { query = {}, body, type = 'application/json' }: RequestOptions = {},
): Promise<Response> {
  const url = new URL(path.slice(1), base);
  for (const [name, value] of Object.entries(query))
    if (value !== undefined && value !== '') url.searchParams.set(name, String(value));
  const headers: Record<string, string> = method === 'GET' ? {} : { 'x-csrf-token': csrfToken() };
  if (body !== undefined) headers['content-type'] = type;
  const sent = typeof body === 'string' ? body : JSON.stringify(body);
  const response = await fetch(url, { method, headers, ...(body === undefined ? {} : { body: sent }) }).catch(
    () => {
      throw new ApiProblem(0, {
        title: 'The service does not answer',
        detail: 'Check that Posthorn is running, then try again.',
        code: 'no_answer',
      });
    },
  );
  if (response.ok) return response;
  const problem = await readProblem(response);
  if (response.status === 401) onSignedOut();
  throw problem;
}

async function readProblem(response: Response): Promise<ApiProblem> {
  const isProblem = response.headers.get('content-type')?.includes('json') ?? false;
  const unknown = {
    title: `The service answered ${response.status}`,
    detail: response.statusText,
    code: 'unknown',
  };
  return new ApiProblem(response.status, isProblem ? await response.json().catch(() => unknown) : unknown);
}

/** The cursor of the next page, from the `Link` header (RFC 8288). */
export function readNextCursor(response: Response): string | null {
  const link = /<([^>]+)>;\s*rel="next"/.exec(response.headers.get('link') ?? '')?.[1];
  return link ? new URL(link, response.url).searchParams.get('cursor') : null;
}
