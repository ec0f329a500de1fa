/**
 * Runs test files in several processes. A process takes the next file when it has finished one: the service is loaded once for
 * each process. Loading it for each file took half of the whole run. A file must leave nothing behind in its process: no timer, no
 * listener, no setting.
 */
import { type ChildProcess, fork } from 'node:child_process';
import path from 'node:path';
import { spec as SpecReporter } from 'node:test/reporters';
import { inspect } from 'node:util';

/** What a process sends while it runs a file. */
export type ProcessMessage = TestEvent | { type: 'end' };

/** An event of node's test runner. */
interface TestEvent {
  type: string;
  // biome-ignore lint/suspicious/noExplicitAny: the events of the runner pass through.
  data: any;
}

/** The error of a test, as text: an Error that is sent to another process arrives without its cause and its own properties. */
export interface Failure {
  failureType: string;
  text: string;
}

export interface Options {
  processes: number;
  execArgv: string[];
  env: NodeJS.ProcessEnv;
}

/** Returns the exit code: 1 when a test failed. */
export async function runFiles(files: string[], options: Options): Promise<number> {
  const began = performance.now();
  const reporter = new SpecReporter();
  reporter.pipe(process.stdout);
  const totals = { tests: 0, suites: 0, passed: 0, failed: 0, cancelled: 0, skipped: 0, todo: 0 };
  const waiting = [...files];
  const children = new Set<ChildProcess>();
  const stop = () => {
    waiting.length = 0;
    for (const child of children) child.kill();
  };
  process.once('SIGINT', stop).once('SIGTERM', stop);

  /** Runs file after file in one process. A process that a file has ended is replaced. */
  async function work(): Promise<void> {
    let child = startProcess(options);
    children.add(child);
    for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) {
      if (hasEnded(child)) {
        children.delete(child);
        child = startProcess(options);
        children.add(child);
      }
      for (const event of await runFile(child, file)) report(event);
    }
    if (child.connected) child.disconnect();
  }

  /** The runner ends each file with its counts; `runFiles` shows the sums at the end. */
  function report(event: TestEvent): void {
    if (event.type === 'test:summary') {
      for (const name of Object.keys(totals) as (keyof typeof totals)[])
        totals[name] += event.data.counts[name] ?? 0;
    } else if (event.type !== 'test:diagnostic' || !isCount(event.data)) reporter.write(event);
  }

  await Promise.all(Array.from({ length: Math.min(options.processes, files.length) }, work));
  const { tests, suites, passed: pass, failed: fail, cancelled, skipped, todo } = totals;
  const duration_ms = performance.now() - began;
  const shown = { tests, suites, pass, fail, cancelled, skipped, todo, duration_ms };
  for (const [name, value] of Object.entries(shown)) {
    reporter.write({
      type: 'test:diagnostic',
      data: { nesting: 0, message: `${name} ${value}`, level: 'info' },
    });
  }
  // The reporter now lists the failed tests once more.
  reporter.end({ type: 'test:summary', data: { counts: totals } });
  return fail || cancelled ? 1 : 0;
}

function startProcess({ execArgv, env }: Options): ChildProcess {
  const file = path.join(import.meta.dirname, 'run-files-process.ts');
  return fork(file, { execArgv, env, serialization: 'advanced' });
}

/** Not by `connected`: the channel may be open for a moment after the end. */
function hasEnded({ exitCode, signalCode }: ChildProcess): boolean {
  return exitCode !== null || signalCode !== null;
}

/** All events of the file. They are shown together, not mixed with those of other files. */
function runFile(child: ChildProcess, file: string): Promise<TestEvent[]> {
  const events: TestEvent[] = [];
  return new Promise((resolve) => {
    const finish = () => {
      child.off('message', read).off('exit', crash);
      resolve(events);
    };
    const read = (message: ProcessMessage) => {
      if (message.type === 'end') finish();
      else events.push(withError(message as TestEvent));
    };
    const crash = (code: number | null, signal: string | null) => {
      const text = `The process of ${file} ended too early: ${signal ?? `exit code ${code}`}.`;
      const details = { duration_ms: 0, error: makeError({ failureType: 'testCodeFailure', text }) };
      events.push(
        { type: 'test:fail', data: { name: file, nesting: 0, testNumber: 1, file, details } },
        { type: 'test:summary', data: { counts: { tests: 1, failed: 1 } } },
      );
      finish();
    };
    child.on('message', read).on('exit', crash);
    // `crash` reports a process that has ended before it could read the file's name.
    child.send(file, () => {});
  });
}

function withError(event: TestEvent): TestEvent {
  const { details } = event.data;
  if (details?.error) details.error = makeError(details.error);
  return event;
}

/** In the form that the reporter expects. */
function makeError({ failureType, text }: Failure): Error {
  const cause = { [inspect.custom]: () => text };
  return Object.assign(new Error(text, { cause }), { code: 'ERR_TEST_FAILURE', failureType });
}

function isCount(diagnostic: { nesting: number; message: string }): boolean {
  const names = /^(tests|suites|pass|fail|cancelled|skipped|todo|duration_ms) [\d.]+$/;
  return diagnostic.nesting === 0 && names.test(diagnostic.message);
}
