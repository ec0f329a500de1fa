/**
 * The catalogue of every error the service answers (RFC 9457), and the class that carries one. docs/errors.md is
 * generated from it. To add an error: one entry here, `npm run docs`.
 */
interface Entry {
  status: number;
  title: string;
  /** What the caller can do about it; the page's text, and the answer's `detail` where the thrower has no better. */
  remedy: string;
}

export const problems = {
  invalid_json: {
    status: 400,
    title: 'The body is not valid JSON',
    remedy: 'Send a JSON document in UTF-8.',
  },
  invalid_body: {
    status: 400,
    title: 'The body has faults',
    remedy:
      'Each fault is in `errors`, with a pointer to its place. Mend them all and send the request again.',
  },
  invalid_query: {
    status: 400,
    title: 'The query has faults',
    remedy: 'Each fault is in `errors`, with the name of its parameter.',
  },
  invalid_header: {
    status: 400,
    title: 'A header has a fault',
    remedy: 'The detail names the header and what it takes.',
  },
  bad_request: {
    status: 400,
    title: 'The request could not be understood',
    remedy: 'Send a well-formed HTTP request.',
  },
  missing_api_key: {
    status: 401,
    title: 'No API key was sent',
    remedy: 'Send the header `Authorization: Bearer <API key>`.',
  },
  invalid_api_key: {
    status: 401,
    title: 'The API key is not valid',
    remedy: 'Check that the key is whole. If it is, it is unknown, expired or revoked: make a new one.',
  },
  missing_token: {
    status: 401,
    title: 'No operator token was sent',
    remedy: "Send the header `Authorization: Bearer <token>` with the operator's token for this route.",
  },
  invalid_token: {
    status: 401,
    title: 'The operator token is not valid',
    remedy: 'Send the token that the service was started with.',
  },
  invalid_link: {
    status: 403,
    title: 'The link is not valid',
    remedy: 'It has run out or is not whole. Take a fresh one from `GET /events/{id}`, or send an API key.',
  },
  owner_mismatch: {
    status: 403,
    title: 'The owner is not yours to act for',
    remedy: 'Send the `userId` that `GET /me` answers for this key.',
  },
  not_found: {
    status: 404,
    title: 'There is no such resource',
    remedy: 'Check the id; list the resources that your key can see.',
  },
  route_not_found: {
    status: 404,
    title: 'There is no such route',
    remedy: 'Check the path and the base path; `GET /openapi.json` lists every route.',
  },
  method_not_allowed: {
    status: 405,
    title: 'The route does not take this method',
    remedy: 'Use one of the methods in the `Allow` header.',
  },
  identity_exists: {
    status: 409,
    title: 'You have this identity already',
    remedy: 'Find it with `GET /identities?value=…`, and change it with PATCH.',
  },
  domain_needed: {
    status: 409,
    title: 'An address is verified through its domain',
    remedy:
      'Connect its domain with `POST /identities`, and put the records in DNS that `dns_records` shows.',
  },
  webhook_disabled: {
    status: 409,
    title: 'The webhook is disabled',
    remedy: 'Enable it with PATCH, then send the request again.',
  },
  idempotency_mismatch: {
    status: 409,
    title: 'The idempotency key was used for another request',
    remedy: 'Use a new `Idempotency-Key` for each new request.',
  },
  idempotency_in_progress: {
    status: 409,
    title: 'The first request with this idempotency key is still under way',
    remedy: 'Wait for it to end and send the request again.',
  },
  body_too_large: {
    status: 413,
    title: 'The body is too large',
    remedy: 'Send a smaller body; the detail tells the limit.',
  },
  unsupported_media_type: {
    status: 415,
    title: 'The content type is not supported',
    remedy: 'Send `Content-Type: application/json`.',
  },
  range_not_satisfiable: {
    status: 416,
    title: 'There are no such bytes',
    remedy: 'The size is in the `Content-Range` header; ask for bytes below it.',
  },
  rate_limited: {
    status: 429,
    title: 'Too many requests',
    remedy: 'Wait for the seconds in `Retry-After`.',
  },
  internal_error: {
    status: 500,
    title: 'Something went wrong on our side',
    remedy: 'Try again. If it stays, tell the operator the `requestId`; the log has the cause under it.',
  },
  database_unavailable: {
    status: 503,
    title: 'The database is away',
    remedy:
      'Try again after the seconds in `Retry-After`. With an `Idempotency-Key` a POST cannot happen twice.',
  },
  shutting_down: {
    status: 503,
    title: 'The service is stopping',
    remedy: 'Try again after the seconds in `Retry-After`.',
  },
} satisfies Record<string, Entry>;

export type ProblemCode = keyof typeof problems;

/** One fault of a body or query. */
export interface FieldError {
  /** JSON Pointer into the body (RFC 6901), or the name of the query parameter. */
  pointer: string;
  code: string;
  message: string;
}

/** What a caller is told. What the operator needs besides goes into `cause`, which is logged and never sent. */
export class Problem extends Error {
  readonly code: ProblemCode;
  readonly detail: string;
  readonly errors: FieldError[] | undefined;
  readonly headers: Record<string, string>;

  constructor(
    code: ProblemCode,
    options: {
      detail?: string;
      errors?: FieldError[];
      headers?: Record<string, string>;
      cause?: unknown;
    } = {},
  ) {
    super(problems[code].title, { cause: options.cause });
    this.name = 'Problem';
    this.code = code;
    this.detail = options.detail ?? problems[code].remedy;
    this.errors = options.errors;
    this.headers = options.headers ?? {};
  }
}

export function toDocument(problem: Problem, requestId: string) {
  const { status, title } = problems[problem.code];
  return {
    type: `urn:posthorn:problem:${problem.code}`,
    title,
    status,
    detail: problem.detail,
    code: problem.code,
    requestId,
    ...(problem.errors ? { errors: problem.errors } : {}),
  };
}
