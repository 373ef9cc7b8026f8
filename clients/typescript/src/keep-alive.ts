/**
 * Detects a connection that is dead but was not closed. Browsers cannot send WebSocket pings, so a
 * cheap request is the probe. No I/O and no clock.
 */
export class KeepAlive {
  /** The milliseconds between two calls of `tick`. */
  readonly interval = 4_000;
  #heard = true;
  #unanswered = 0;
  #lastTick = -Infinity;

  received(): void {
    this.#heard = true;
  }

  /**
   * Counts only ticks that are an interval apart: a suspended machine gets time to read what has
   * arrived.
   */
  tick(now: number): "alive" | "probe" | "dead" {
    if (now < this.#lastTick + this.interval) return "alive";
    this.#lastTick = now;
    if (this.#heard) {
      this.#heard = false;
      this.#unanswered = 0;
      return "alive";
    }
    this.#unanswered += 1;
    return this.#unanswered > 3 ? "dead" : "probe";
  }

  /** A new connection begins. */
  reset(): void {
    this.#heard = true;
    this.#unanswered = 0;
  }
}
