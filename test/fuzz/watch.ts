/** Watches a fuzzing child: its progress, its failures, and whether it crashes or hangs. */
import type { ChildProcess } from 'node:child_process';
import type { Report } from './target.ts';
import { againWith } from './targets.ts';

const progressMs = 5000;
/** Longer than the time limits of any case, on a busy machine. */
const patienceMs = 240_000;
const shownFinds = 10;

export class Watch {
  /** By message, so that the same failure is reported once. */
  readonly finds = new Map<string, number>();
  readonly #name: string;
  readonly #seed: number;
  readonly #tell: (line: string) => void;
  readonly #open = new Set<number>();
  readonly #outcomes = new Set<string>();
  #began = performance.now();
  #heardAt = performance.now();
  #cases = 0;
  #memoryBytes = 0;

  constructor(name: string, seed: number, tell: (line: string) => void) {
    this.#name = name;
    this.#seed = seed;
    this.#tell = tell;
  }

  async untilItEnds(child: ChildProcess): Promise<void> {
    child.on('message', (report: Report) => this.#hear(report));
    const progress = setInterval(() => {
      this.tellProgress();
      if (performance.now() - this.#heardAt < patienceMs) return;
      this.#find(`Nothing was heard for ${patienceMs / 1000} s`);
      child.kill('SIGKILL');
    }, progressMs);
    const end = await new Promise((resolve) => child.on('exit', (code, signal) => resolve(code ?? signal)));
    clearInterval(progress);
    if (end !== 0 && !child.killed && this.finds.size === 0) this.#find(`The process ended with ${end}`);
  }

  tellProgress(): void {
    const ms = performance.now() - this.#began;
    const rate = Math.round((1000 * this.#cases) / ms);
    const memory = Math.round(this.#memoryBytes / 1024 / 1024);
    this.#tell(
      `${Math.round(ms / 1000)} s: ${this.#cases} cases (${rate}/s), ${this.#outcomes.size} distinct outcomes, ` +
        `${this.finds.size} found, ${memory} MB`,
    );
  }

  #hear(report: Report): void {
    this.#heardAt = performance.now();
    if (report.kind === 'ready') this.#began = performance.now();
    else if (report.kind === 'begun') this.#open.add(report.number);
    else {
      this.#open.delete(report.number);
      this.#cases += 1;
      if (report.kind === 'found') this.#tellFind(report.what, report.number, report.folder);
      else {
        for (const outcome of report.outcomes) this.#outcomes.add(outcome);
        this.#memoryBytes = report.memoryBytes;
      }
    }
  }

  /** The process crashed: any of the open cases may be the reason. */
  #find(what: string): void {
    for (const number of this.#open) this.#tellFind(what, number);
    if (this.#open.size === 0) this.#tellFind(what, 0);
  }

  #tellFind(what: string, number: number, folder?: string): void {
    const [line = ''] = what.split('\n', 1);
    const kind = line.replaceAll(/[\da-f]{8,}|\d+/gi, '#').slice(0, 100);
    const times = (this.finds.get(kind) ?? 0) + 1;
    this.finds.set(kind, times);
    if (times > 1 || this.finds.size > shownFinds) return;
    this.#tell(`✗ ${what.split('\n').slice(0, 8).join('\n')}`);
    this.#tell(
      `  again with: ${againWith(this.#name, this.#seed, number)}${folder ? `\n  kept in ${folder}` : ''}`,
    );
  }
}
