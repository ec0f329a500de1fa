/** An error that the operator can fix: the message says what is wrong and what to do. The CLI prints it without a stack. */
export class OperatorError extends Error {
  override readonly name = 'OperatorError';
}
