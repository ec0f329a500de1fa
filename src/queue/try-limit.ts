/**
 * How many tries a lane may have at once: as many as its receiver bears. The limit starts at `perLane`. It doubles while all of
 * it is used, the answers are good and they do not come later than with fewer tries at once. It falls at once: to its start after
 * a failure, and by half when the answers come later or when the receiver asks for less. Pure: time is an argument.
 */
export interface TryLimits {
  /** Tries at once in one lane: at the start, and at most. */
  perLane: number;
  maxPerLane: number;
}

/** How a try ended, as far as its lane is concerned. */
export interface TryEnd {
  /** False when the try counts as a failure for the lane's breaker. */
  isHealthy: boolean;
  /** The receiver asked for fewer tries: the only failure that lets the limit fall below its start. */
  asksForLess?: boolean;
  /** How long the receiver took to answer. Without the time to connect: a higher limit needs new connections. */
  answerMs?: number;
}

/** Twice as many tries must bring 1.4 times as many answers a second: 2 / 1.4. */
const slowerFactor = 1.4;
/** After a fall the limit stays for this long. */
const growAgainMs = 5000;
/** The limit of an idle lane is kept about as long as idle connections are: afterwards each try would open a new one. */
const rememberMs = 30_000;

export class TryLimit {
  readonly #limits: TryLimits;
  #value: number;
  /** The answers to tries that started earlier, or just then, belong to another limit. */
  #countedFrom = Number.NEGATIVE_INFINITY;
  #fellAt = Number.NEGATIVE_INFINITY;
  #usedAt = Number.NEGATIVE_INFINITY;
  /** The mean time of an answer when the answers came quickest. */
  #quickestMs = Number.POSITIVE_INFINITY;
  // A round: as many answers as there may be tries at once.
  #answers = 0;
  #totalMs = 0;
  #isUsedUp = false;

  constructor(limits: TryLimits) {
    this.#limits = limits;
    this.#value = limits.perLane;
  }

  get value(): number {
    return this.#value;
  }

  get rememberUntil(): number {
    return this.#value === this.#limits.perLane ? Number.NEGATIVE_INFINITY : this.#usedAt + rememberMs;
  }

  /** `running` includes the try that ended. */
  end({ isHealthy, asksForLess, answerMs }: TryEnd, running: number, nowMs: number): void {
    this.#usedAt = nowMs;
    const startedAt = nowMs - (answerMs ?? 0);
    if (!isHealthy && !asksForLess) this.#fall(Math.min(this.#value, this.#limits.perLane), nowMs);
    // The tries of one moment are often all answered with the same request to slow down, which counts once.
    else if (!isHealthy && startedAt > this.#fellAt) this.#fall(Math.ceil(this.#value / 2), nowMs);
    else if (isHealthy && answerMs !== undefined && startedAt > this.#countedFrom)
      this.#count(answerMs, running, nowMs);
  }

  #count(answerMs: number, running: number, nowMs: number): void {
    this.#answers += 1;
    this.#totalMs += answerMs;
    // Not all of it: between two claims some places are free.
    this.#isUsedUp ||= running >= this.#value * 0.75;
    if (this.#answers >= this.#value) this.#endRound(this.#totalMs / this.#answers, nowMs);
  }

  #endRound(meanMs: number, nowMs: number): void {
    const { perLane, maxPerLane } = this.#limits;
    const isSlower = meanMs > this.#quickestMs * slowerFactor;
    if (isSlower && this.#value > perLane) this.#fall(Math.max(perLane, Math.floor(this.#value / 2)), nowMs);
    else {
      // Slower at the start of the limit: the number of tries is not the reason.
      this.#quickestMs = isSlower ? meanMs : Math.min(meanMs, this.#quickestMs);
      const mayGrow = this.#isUsedUp && !isSlower && nowMs >= this.#fellAt + growAgainMs;
      const grown = mayGrow ? Math.min(this.#value * 2, maxPerLane) : this.#value;
      // Tries that started just before the limit grew mostly run under the new one. Often they all start at the same moment.
      if (grown > this.#value) this.#countedFrom = nowMs - meanMs / 4;
      this.#startRound(grown);
    }
  }

  #fall(value: number, nowMs: number): void {
    this.#fellAt = nowMs;
    this.#countedFrom = nowMs;
    this.#startRound(value);
  }

  #startRound(value: number): void {
    this.#value = value;
    this.#answers = 0;
    this.#totalMs = 0;
    this.#isUsedUp = false;
  }
}
