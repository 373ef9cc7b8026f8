/**
 * The client's copy of a process's log: in order, each event once, bounded. No I/O and no clock.
 *
 * Events are accepted only in sequence. Output that a subscriber has not consumed, or that the
 * first subscriber may still want, is never evicted. While that leaves no room, new output is
 * refused, and `ProcessSync` reads it from the server once there is room.
 */
import { GapError } from "./errors.js";

export type StreamName = "stdout" | "stderr" | "pty";

/** How a process ended. */
export interface ExitStatus {
  exitCode: number;
  /** The number of the signal that killed the process. */
  signal: number | null;
  sandboxDenied: boolean;
  /** The access that the sandbox denied, as far as the program named it. */
  denied: { path?: string; call?: string; host?: string } | null;
  timedOut: boolean;
  serverStopped: boolean;
  limitsHit: string[];
  durationMs: number | null;
  cpuMs: number | null;
  maxRssBytes: number | null;
}

export type ProcessEvent =
  | { type: "output"; seq: number; stream: StreamName; data: Uint8Array }
  /** Output is missing here. */
  | { type: "gap"; droppedBytes: number }
  | ({ type: "exited"; seq: number } & ExitStatus)
  /** The last event. */
  | { type: "closed"; seq: number };

export type LogEvent =
  | { type: "output"; stream: StreamName; data: Uint8Array }
  | ({ type: "exited" } & ExitStatus)
  | { type: "closed" };

export type Offer = "accepted" | "duplicate" | "hole" | "full";

/** Which events a subscriber wants; the others count as consumed. */
export type Wanted = "stdout" | "stderr" | "all";

export interface Subscriber {
  readonly wanted: Wanted;
  /** The number of the next event that the subscriber wants. */
  position: number;
  /** Bytes of output evicted before the subscription; reported first, as a gap. */
  missed: number;
  /** Whether the exit was evicted before the subscription; an `all` subscriber still gets it. */
  missedExit: boolean;
  /** Called once when there is something new. */
  wake: (() => void) | null;
}

interface Stored {
  seq: number;
  event: ProcessEvent;
}

/** The maximum size of a log: its output, plus `COST_OF_AN_EVENT` for each event. */
export const CAPACITY = 4 << 20;
/** How much consumed output is kept for late subscribers. */
const RETAINED = 1 << 20;
const COST_OF_AN_EVENT = 64;

export class ProcessLog {
  /** The number that is accepted next. */
  next: number;
  exit: ({ seq: number } & ExitStatus) | null = null;
  closed = false;
  failure: Error | null = null;
  /** Called when a subscriber took an event with `bytes` of output (or 0), or left. */
  onConsumed: (bytes: number) => void = () => {};
  onFailed: (error: Error) => void = () => {};

  #events: Stored[] = [];
  /** Events before this index of `#events` are evicted; they are removed in batches. */
  #first = 0;
  #cost = 0;
  readonly #evictedBytes = { stdout: 0, stderr: 0 };
  #subscribers = new Set<Subscriber>();
  /** Whether the first subscriber is still to come. Until then everything is kept for it. */
  #awaitsSubscriber = true;
  readonly #after: number;

  constructor(
    readonly processId: string,
    /** Whether missing output fails the process, or is only declared. */
    readonly gaps: "fatal" | "declared",
    after = 0,
  ) {
    this.#after = after;
    this.next = after + 1;
  }

  get over(): boolean {
    return this.closed || this.failure !== null;
  }

  /**
   * The last event that every subscriber has consumed. Only this much may be confirmed to the
   * server.
   */
  get consumed(): number {
    if (this.#awaitsSubscriber) return this.#after;
    let position = this.next;
    for (const subscriber of this.#subscribers) position = Math.min(position, subscriber.position);
    return position - 1;
  }

  offer(seq: number, event: LogEvent): Offer {
    if (this.over || seq < this.next) return "duplicate";
    if (seq > this.next) return "hole";
    if (event.type === "output") {
      const cost = event.data.length + COST_OF_AN_EVENT;
      this.#evictFor(cost);
      // An empty log takes anything, so that no chunk is too large for it.
      if (this.#cost > 0 && this.#cost + cost > CAPACITY) return "full";
    } else if (event.type === "exited") {
      if (this.exit !== null) {
        // A read reported it already, under another number.
        this.#skip(seq + 1);
        return "accepted";
      }
      this.exit = { ...event, seq };
    } else {
      this.closed = true;
    }
    this.#push({ ...event, seq }, seq + 1);
    return "accepted";
  }

  /**
   * Continues at `seq` although `droppedBytes` of output before it are missing. Throws if gaps are
   * fatal.
   */
  skipTo(seq: number, droppedBytes: number): void {
    if (this.over || seq <= this.next) return;
    if (this.gaps === "fatal") throw new GapError(this.processId, droppedBytes, { fatal: true });
    this.#push({ type: "gap", droppedBytes }, seq);
  }

  /** Ends the log: subscribers get the events that are here, and then this error. */
  fail(error: Error): void {
    if (this.over) return;
    this.failure = error;
    this.onFailed(error);
    this.#wakeAll();
  }

  /** Starts at the oldest retained event, or at `position`. The first subscriber misses nothing. */
  subscribe(wanted: Wanted, position?: number): Subscriber {
    this.#awaitsSubscriber = false;
    const first = this.#events[this.#first]?.seq ?? this.next;
    const missed =
      position === undefined || position < first ? this.#evictedBytesOf(wanted) : 0;
    const start = Math.max(position ?? first, first);
    const missedExit = wanted === "all" && this.exit !== null && this.exit.seq < start && !position;
    const subscriber: Subscriber = { wanted, position: start, missed, missedExit, wake: null };
    this.#subscribers.add(subscriber);
    this.#skipUnwanted(subscriber);
    return subscriber;
  }

  unsubscribe(subscriber: Subscriber): void {
    if (this.#subscribers.delete(subscriber)) this.onConsumed(0);
  }

  /** Says that no subscriber will come: everything counts as consumed. */
  expectNoSubscriber(): void {
    this.#awaitsSubscriber = false;
    this.onConsumed(0);
  }

  take(subscriber: Subscriber): ProcessEvent | undefined {
    if (subscriber.missed > 0) {
      const droppedBytes = subscriber.missed;
      subscriber.missed = 0;
      return { type: "gap", droppedBytes };
    }
    if (subscriber.missedExit && this.exit !== null) {
      subscriber.missedExit = false;
      return { type: "exited", ...this.exit };
    }
    const stored = this.#find(subscriber.position);
    if (stored === undefined) return undefined;
    subscriber.position = stored.seq + 1;
    this.#skipUnwanted(subscriber);
    this.onConsumed(stored.event.type === "output" ? stored.event.data.length : 0);
    return stored.event;
  }

  /** How many bytes of output after this event are here. */
  bytesAfter(seq: number): number {
    let bytes = 0;
    for (let at = this.#events.length - 1; at >= this.#first && this.#events[at]!.seq > seq; at--) {
      const { event } = this.#events[at]!;
      if (event.type === "output") bytes += event.data.length;
    }
    return bytes;
  }

  /**
   * How much a read may fetch now: nothing until all events here are consumed, because a read
   * confirms the events before it.
   */
  get room(): number {
    return this.consumed === this.next - 1 ? CAPACITY - RETAINED : 0;
  }

  #push(event: ProcessEvent, next: number): void {
    this.#events.push({ seq: this.next, event });
    this.#cost += costOf(event);
    this.#skip(next);
  }

  #skip(next: number): void {
    this.next = next;
    for (const subscriber of this.#subscribers) this.#skipUnwanted(subscriber);
    this.#wakeAll();
  }

  #wakeAll(): void {
    for (const subscriber of this.#subscribers) {
      const { wake } = subscriber;
      subscriber.wake = null;
      wake?.();
    }
  }

  #skipUnwanted(subscriber: Subscriber): void {
    for (;;) {
      const stored = this.#find(subscriber.position);
      if (stored === undefined) {
        subscriber.position = Math.max(subscriber.position, this.next);
        return;
      }
      if (isWanted(subscriber.wanted, stored.event)) return;
      subscriber.position = stored.seq + 1;
    }
  }

  /** The first event that is not before `seq`. */
  #find(seq: number): Stored | undefined {
    let [low, high] = [this.#first, this.#events.length];
    // The common case: the subscriber has read everything.
    if (high > low && this.#events[high - 1]!.seq < seq) return undefined;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#events[middle]!.seq < seq) low = middle + 1;
      else high = middle;
    }
    return this.#events[low];
  }

  #evictedBytesOf(wanted: Wanted): number {
    const { stdout, stderr } = this.#evictedBytes;
    return wanted === "all" ? stdout + stderr : this.#evictedBytes[wanted];
  }

  #evictFor(cost: number): void {
    const consumed = this.consumed;
    while (this.#first < this.#events.length && this.#cost + cost > RETAINED) {
      const oldest = this.#events[this.#first]!;
      if (oldest.seq > consumed) break;
      this.#cost -= costOf(oldest.event);
      if (oldest.event.type === "output") {
        const { stream, data } = oldest.event;
        this.#evictedBytes[stream === "stderr" ? "stderr" : "stdout"] += data.length;
      }
      this.#events[this.#first++] = undefined as never;
    }
    if (this.#first > 64 && this.#first * 2 > this.#events.length) {
      this.#events = this.#events.slice(this.#first);
      this.#first = 0;
    }
  }
}

function isWanted(wanted: Wanted, event: ProcessEvent): boolean {
  if (wanted === "all" || event.type === "gap") return true;
  return event.type === "output" && (event.stream === "stderr") === (wanted === "stderr");
}

function costOf(event: ProcessEvent): number {
  return COST_OF_AN_EVENT + (event.type === "output" ? event.data.length : 0);
}
