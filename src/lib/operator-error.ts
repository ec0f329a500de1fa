/**
 * A mistake or circumstance that the person who runs Posthorn can mend: its message says what is wrong and
 * what to do next. The CLI prints it without a stack and exits with `exitCode`.
 */
export class OperatorError extends Error {
  readonly exitCode: number;

  constructor(message: string, options: { exitCode?: number; cause?: unknown } = {}) {
    super(message, { cause: options.cause });
    this.name = 'OperatorError';
    this.exitCode = options.exitCode ?? 1;
  }
}
