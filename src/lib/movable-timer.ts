/** One timer for the life of a connection: to move it costs next to nothing, where a new one for each piece of work adds up. */
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
