/**
 * Every `code` of a problem document (RFC 9457). To add a code: add an entry, throw `new Problem('the_code')`, and run `npm run docs`,
 * which generates docs/errors.md. Users also see codes of three other kinds:
 * - in `errors` of a problem document, a code for each field: http/validation.ts and the routes in http/routes/
 * - in `error` of an attempt, why a try failed: `TryError` in webhooks/decide.ts
 * - over SMTP, replies with a status and a text: smtp/session.ts, smtp/connection.ts, smtp/mx.ts and smtp/submission.ts
 */
interface Entry {
  status: number;
  title: string;
  /** What the caller can do: shown in docs/errors.md, and the `detail` of a problem that has no `detail` of its own. */
  remedy: string;
}

export const problems = {
  invalid_json: {
    status: 400,
    title: 'The body is not valid JSON',
    remedy: 'Send one JSON document, encoded in UTF-8.',
  },
  invalid_body: {
    status: 400,
    title: 'The body is not valid',
    remedy: 'Fix every field that `errors` lists by JSON Pointer, then send the request again.',
  },
  secret_required: {
    status: 400,
    title: 'The secret must be given again',
    remedy:
      'A stored password or token is not sent to another server. Send the request again with the secrets that `errors` lists.',
  },
  invalid_query: {
    status: 400,
    title: 'The query is not valid',
    remedy: 'Fix every query parameter that `errors` lists by JSON Pointer, then send the request again.',
  },
  invalid_header: {
    status: 400,
    title: 'A header is not valid',
    remedy: 'Fix the header that `detail` names, then send the request again.',
  },
  bad_request: {
    status: 400,
    title: 'The HTTP request is malformed',
    remedy: 'Send a well-formed HTTP request.',
  },
  hook_incomplete: {
    status: 400,
    title: 'The call of the provider lacks what is needed',
    remedy: '`detail` says which setting to change at the provider.',
  },
  missing_api_key: {
    status: 401,
    title: 'The request has no API key',
    remedy: 'Send the header `Authorization: Bearer <API key>`.',
  },
  invalid_api_key: {
    status: 401,
    title: 'The API key is not valid',
    remedy:
      'Check that the key was copied completely. A complete key that is refused is unknown, expired or revoked: create a new API key.',
  },
  invalid_session: {
    status: 401,
    title: 'The session has ended',
    remedy: 'Sign in again with `POST /sessions`.',
  },
  invalid_sign_in_link: {
    status: 401,
    title: 'The sign-in link is not valid',
    remedy:
      'A link works once, within 10 minutes. Print another on the machine of the service with `posthorn sign-in-link`.',
  },
  missing_token: {
    status: 401,
    title: 'The request has no operator token',
    remedy: 'Send the header `Authorization: Bearer <token>` with the operator token for this route.',
  },
  invalid_token: {
    status: 401,
    title: 'The operator token is not valid',
    remedy: 'Send the token from the configuration of the service.',
  },
  invalid_link: {
    status: 403,
    title: 'The link is not valid',
    remedy:
      'The link has expired or is incomplete. Get a new link from `GET /events/{id}`, or send an API key.',
  },
  scope_insufficient: {
    status: 403,
    title: 'The scope of the API key does not allow this request',
    remedy:
      'Use an API key with a scope that the route accepts: `/docs` names the scopes of each route. A `full` key may use every route.',
  },
  invalid_csrf_token: {
    status: 403,
    title: 'The CSRF token of the session is missing or wrong',
    remedy: 'Send the header `X-CSRF-Token` with the `csrfToken` that `GET /sessions/current` returns.',
  },
  cross_origin: {
    status: 403,
    title: 'A page of another site cannot sign in',
    remedy: 'Sign in on the pages of this service, or send an API key with each request.',
  },
  identity_not_verified: {
    status: 403,
    title: 'The identity is not verified, so it cannot send',
    remedy:
      'Publish the `dns_records` of its domain, then `POST /identities/{id}/verify`; of an address without a domain, this sends a mail that confirms it. `GET /identities/{id}` shows the status.',
  },
  hook_refused: {
    status: 403,
    title: 'The call is not from the provider',
    remedy:
      'The secret in the URL, the signature or the login of the call is missing, wrong or older than 24 hours. Compare the URL with `GET /providers/{id}`, and check the credentials of the provider with `PATCH /providers/{id}`.',
  },
  owner_mismatch: {
    status: 403,
    title: 'The owner in the request is not the user of the API key',
    remedy: 'Send the `userId` that `GET /me` returns for this API key.',
  },
  not_found: {
    status: 404,
    title: 'The resource does not exist',
    remedy: 'Check the id. An API key finds only the resources of its own user.',
  },
  route_not_found: {
    status: 404,
    title: 'The route does not exist',
    remedy: 'Check the path. `/docs` describes every route.',
  },
  method_not_allowed: {
    status: 405,
    title: 'The route does not support this method',
    remedy: 'Use one of the methods in the `Allow` header.',
  },
  unknown_recipient: {
    status: 406,
    title: 'No identity receives mail for the recipient',
    remedy: 'Create the identity with `POST /identities`, or do not forward this mail.',
  },
  request_timeout: {
    status: 408,
    title: 'The request arrives too slowly',
    remedy:
      'Send the whole request without pauses, on a new connection. `POST /inbound` and `POST /messages` need 64 KiB of the body, or the rest of it, every 30 s.',
  },
  identity_exists: {
    status: 409,
    title: 'The identity already exists',
    remedy: 'Find the identity with `GET /identities?value=…` and change the identity with PATCH.',
  },
  domain_needed: {
    status: 409,
    title: 'DKIM keys belong to a domain',
    remedy:
      'Connect the domain of the address with `POST /identities`, then publish the `dns_records` of the domain.',
  },
  no_mailbox: {
    status: 409,
    title: 'The identity has no mailbox at another server',
    remedy:
      'Create an SMTP account with `imap`, and set it as the `smtp_account_id` of an email identity. Then its mailbox can be synchronised.',
  },
  in_use: {
    status: 409,
    title: 'The resource is in use',
    remedy: '`detail` names what refers to it. Change that first, then send the request again.',
  },
  too_many_webhooks: {
    status: 409,
    title: 'The user has the largest number of webhooks',
    remedy: 'Delete a webhook, then send the request again. The operator sets the limit.',
  },
  too_many_accounts: {
    status: 409,
    title: 'The user has the largest number of SMTP accounts',
    remedy: 'Delete an SMTP account, then send the request again. The operator sets the limit.',
  },
  webhook_disabled: {
    status: 409,
    title: 'The webhook is disabled',
    remedy: 'Enable the webhook with PATCH, then send the request again.',
  },
  message_deleted: {
    status: 409,
    title: 'The message of the delivery was deleted',
    remedy: 'Nothing is left that could be sent again.',
  },
  nothing_to_cancel: {
    status: 409,
    title: 'Nothing of the message can be cancelled',
    remedy: 'Every recipient has ended. `GET /messages/{id}` shows how.',
  },
  event_gone: {
    status: 410,
    title: 'The stream cannot resume after this event',
    remedy:
      'The event is unknown, or its retention has ended. Read `GET /events` for what you missed, then open the stream without `Last-Event-ID`.',
  },
  idempotency_mismatch: {
    status: 409,
    title: 'The idempotency key was used for another request',
    remedy: 'Use a new `Idempotency-Key` for each new request.',
  },
  idempotency_in_progress: {
    status: 409,
    title: 'The first request with this idempotency key is still running',
    remedy: 'Wait until the first request has finished, then send the request again.',
  },
  body_too_large: {
    status: 413,
    title: 'The body is too large',
    remedy: 'Send a smaller body. `detail` names the limit.',
  },
  message_too_complex: {
    status: 413,
    title: 'The work on the message takes too long',
    remedy:
      'Send a message that is smaller or has simpler HTML. Of a stored message, `GET /messages/{id}/raw` always gives the bytes.',
  },
  unsupported_media_type: {
    status: 415,
    title: 'The content type is not supported',
    remedy: 'Send `Content-Type: application/json`.',
  },
  range_not_satisfiable: {
    status: 416,
    title: 'The requested range is beyond the end',
    remedy: 'Request a range within the size that the `Content-Range` header gives.',
  },
  rate_limited: {
    status: 429,
    title: 'Too many requests',
    remedy: 'Wait for the number of seconds in `Retry-After`, then send the request again.',
  },
  too_many_streams: {
    status: 429,
    title: 'Too many event streams are open',
    remedy: 'Close a stream, then open another. Several readers can share one.',
  },
  too_many_verifications: {
    status: 429,
    title: 'Too many of your accounts and providers are verified at the same time',
    remedy: 'Wait for the answer to one of them, then send the request again.',
  },
  internal_error: {
    status: 500,
    title: 'The service failed to process the request',
    remedy:
      'Send the request again. If the error persists, give the `requestId` to the operator: the log has the cause under this id.',
  },
  database_unavailable: {
    status: 503,
    title: 'The database is unavailable',
    remedy:
      'Send the request again after the number of seconds in `Retry-After`. An `Idempotency-Key` makes it safe to repeat a POST.',
  },
  search_not_ready: {
    status: 503,
    title: 'The search is not ready yet',
    remedy:
      'After an upgrade the service builds the index of the search. Search again after the number of seconds in `Retry-After`, or add `since` or `identity_id`, so that fewer messages must be read.',
  },
  report_too_early: {
    status: 503,
    title: 'The result of sending is not recorded yet',
    remedy: 'Send the report again after the number of seconds in `Retry-After`.',
  },
  signer_unreachable: {
    status: 503,
    title: 'The certificate of the signature could not be fetched',
    remedy: 'Send the call again after the number of seconds in `Retry-After`.',
  },
  starting: {
    status: 503,
    title: 'The service is starting',
    remedy: 'Send the request again after the number of seconds in `Retry-After`.',
  },
  overloaded: {
    status: 503,
    title: 'The service has too many large messages to examine',
    remedy: 'Send the request again after the number of seconds in `Retry-After`.',
  },
  verifications_busy: {
    status: 503,
    title: 'Too many accounts and providers are verified at the same time',
    remedy: 'Send the request again after the number of seconds in `Retry-After`.',
  },
  answers_unread: {
    status: 503,
    title: 'Too many answers wait to be read',
    remedy:
      'Read the answers to your other requests. Send the request again after the number of seconds in `Retry-After`.',
  },
  shutting_down: {
    status: 503,
    title: 'The service is shutting down',
    remedy: 'Send the request again after the number of seconds in `Retry-After`.',
  },
} satisfies Record<string, Entry>;

export type ProblemCode = keyof typeof problems;

/** A JSON Pointer (RFC 6901) into the body or, with `invalid_query`, into the query: `/limit`. The empty one means all of it. */
export type Pointer = '' | `/${string}`;

export interface FieldError {
  pointer: Pointer;
  /** A code for this field, such as `required`: not a `ProblemCode`. */
  code: string;
  message: string;
}

/** What the caller reads. `cause` is for the operator: it is logged and never sent. */
export class Problem extends Error {
  readonly code: ProblemCode;
  readonly status: number;
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
    this.status = problems[code].status;
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
