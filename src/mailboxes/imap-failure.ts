/** Why an IMAP server, or the way to it, failed. A failure in a thread crosses to the main thread as a plain value (`ImapFailure`). */
import type { ServerError } from '../net/mail-server.ts';

export interface ImapFailure {
  error: ServerError;
  /** The server refuses a command, and the connection goes on. */
  isRefusal: boolean;
  /** The server refuses one folder, and the connection goes on. */
  isFolderRefused: boolean;
}

/** The thread of a connection ended, whatever the connection's server did. No user is shown this failure. */
export class ThreadFailure extends Error {
  /** The thread worked for the connection, whose server may be the cause. */
  readonly wasBusy: boolean;

  constructor(message: string, wasBusy: boolean) {
    super(message);
    this.wasBusy = wasBusy;
  }
}

/** Of all that can end a sync, its user is shown only these failures. */
export class ServerFailure extends Error {
  readonly error: ServerError;
  readonly isRefusal: boolean;
  readonly isFolderRefused: boolean;

  constructor(error: ServerError, { isRefusal, isFolderRefused }: Partial<ImapFailure> = {}) {
    super(error.message);
    this.error = error;
    this.isRefusal = isRefusal ?? false;
    this.isFolderRefused = isFolderRefused ?? false;
  }
}
