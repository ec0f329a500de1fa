/**
 * Runs test files in several processes. A process takes the next file when it has finished one, so the service is loaded once for
 * each process and not once for each file, which was half of the whole run.
 */
import { type ChildProcess, fork } from 'node:child_process';
import path from 'node:path';
import { spec as SpecReporter } from 'node:test/reporters';
import { inspect } from 'node:util';

/** What a process says of the file that it runs. */
export type Said = TestEvent | { type: 'end' };

/** An event of node's test runner. */
export interface TestEvent {
  type: string;
  // biome-ignore lint/suspicious/noExplicitAny: the events of the runner pass through.
  data: any;
}

/** The error of a test, as text: an Error loses most of itself on its way to another process. */
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
  const totals: Record<string, number> = {};
  const waiting = [...files];
  const children = new Set<ChildProcess>();
  const stop = () => {
    waiting.length = 0;
    for (const child of children) child.kill();
  };
  process.once('SIGINT', stop).once('SIGTERM', stop);

  /** One process, or one after the other where a process ends too early. */
  async function work(): Promise<void> {
    let child = startProcess(options);
    for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) {
      if (!child.connected) child = startProcess(options);
      children.add(child);
      for (const event of await runFile(child, file)) report(event);
    }
    child.disconnect();
  }

  /** The runner ends each file with numbers; we show the sums at the end. */
  function report(event: TestEvent): void {
    if (event.type === 'test:summary') {
      for (const [name, count] of Object.entries<number>(event.data.counts)) {
        totals[name] = (totals[name] ?? 0) + count;
      }
    } else if (event.type !== 'test:diagnostic' || !isNumber(event.data)) reporter.write(event);
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

/** All events of the file. They are shown together, not mixed with those of other files. */
function runFile(child: ChildProcess, file: string): Promise<TestEvent[]> {
  const events: TestEvent[] = [];
  return new Promise((resolve) => {
    const finish = () => {
      child.off('message', read).off('exit', crash);
      resolve(events);
    };
    const read = (said: Said) => {
      if (said.type === 'end') finish();
      else events.push(withError(said as TestEvent));
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
    child.send(file);
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

function isNumber(diagnostic: { nesting: number; message: string }): boolean {
  const names = /^(tests|suites|pass|fail|cancelled|skipped|todo|duration_ms) [\d.]+$/;
  return diagnostic.nesting === 0 && names.test(diagnostic.message);
}
