/** Runs `work` at the first call and returns that result at every call. */
export function once<Result>(work: () => Result): () => Result {
  let done: { result: Result } | undefined;
  return () => {
    done ??= { result: work() };
    return done.result;
  };
}
