/** One timer for the life of a connection: moving it costs much less than a new timer for each piece of work. */
export class MovableTimer {
  readonly #expire: () => void;
  #timer: NodeJS.Timeout | null = null;
  #withinMs = 0;

  constructor(expire: () => void) {
    this.#expire = expire;
  }

  arm(withinMs: number): void {
    if (this.#timer && this.#withinMs === withinMs) {
      this.#timer.refresh();
      return;
    }
    this.clear();
    this.#withinMs = withinMs;
    this.#timer = setTimeout(this.#expire, withinMs).unref();
  }

  clear(): void {
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
  }
}
