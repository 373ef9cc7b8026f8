/**
 * Keeps the log of one process in step with the server's: tracks what was announced, consumed and
 * confirmed, and what must be read. Decides what to send; no I/O, and time is an argument.
 */
import { applyRead, isSeq, readExit } from "./catch-up.js";
import { ProtocolError } from "./errors.js";
import type { AckParams, ReadParams, ReadResponse, TerminateParams } from "./generated.js";
import { ProcessLog, type ExitStatus, type StreamName } from "./process-log.js";
import { decodeBase64 } from "./wire.js";

/**
 * Consumed output is confirmed once it reaches `ACK_BYTES`, at the end of the log, or after
 * `ACK_DELAY` milliseconds.
 */
const ACK_BYTES = 256 << 10;
const ACK_DELAY = 100;
/**
 * The first read after a reconnect only has to show whether events are missing; later reads fetch
 * them.
 */
const CATCH_UP_BYTES = 64 << 10;

export type Outbound =
  | { type: "notify"; method: "process/ack"; params: AckParams }
  /** A call that must arrive; its result is ignored. */
  | {
      type: "call";
      method: "process/read" | "process/terminate";
      params: ReadParams | TerminateParams;
    }
  /** A read whose response goes to `pulled`. */
  | { type: "pull"; params: ReadParams; after: number };

export class ProcessSync {
  log: ProcessLog;
  /** Called once, as soon as the exit is known: it may be far ahead of the output that is here. */
  onExit: (exit: ExitStatus) => void = () => {};
  /** Called when a reader consumed something or left: `collect` may have something to send. */
  onConsumed: () => void = () => {};
  /** The last event that the server has announced, whether or not the log has it. */
  #announced: number;
  /** Whether the server may have events that it sends only in response to `process/read`. */
  #unsure: boolean;
  #pulling = false;
  /** When the next read may be sent, if the last one brought nothing; otherwise 0. */
  #stalledUntil = 0;
  #acked = 0;
  #unackedBytes = 0;
  #ackAt: number | null = null;
  #exitTold = false;
  #terminates = false;
  #confirmedEnd = false;

  constructor(
    readonly processId: string,
    options: { gaps: "fatal" | "declared"; after?: number; attached?: boolean },
  ) {
    const after = options.after ?? 0;
    this.log = this.#newLog(options.gaps, after);
    this.#announced = after;
    this.#acked = after;
    // Events that were sent to another client are sent again only in response to `process/read`.
    this.#unsure = options.attached ?? false;
  }

  /** Whether nothing more has to be received or sent. */
  get done(): boolean {
    return !this.#terminates && (this.log.failure !== null || this.#confirmedEnd);
  }

  notified(method: string, params: Record<string, unknown>): void {
    const { seq } = params;
    if (!isSeq(seq)) {
      return this.#fail(
        new ProtocolError(
          `process "${this.processId}": ${method} has the impossible sequence number ${seq}`,
        ),
      );
    }
    this.#stalledUntil = 0;
    this.#announced = Math.max(this.#announced, seq);
    if (method === "process/exited") {
      const exit = readExit(params);
      if (exit === null)
        return this.#fail(
          new ProtocolError(`process "${this.processId}": process/exited has no exit code`),
        );
      this.#tellExit(exit);
      this.log.offer(seq, { type: "exited", ...exit });
    } else if (method === "process/closed") {
      // If no exit came before it, the exit lies in a gap; a read will report it.
      if (this.log.exit !== null) this.log.offer(seq, { type: "closed" });
    } else if (seq === this.log.next) {
      const data = decodeBase64(params.chunk as string);
      this.log.offer(seq, { type: "output", stream: params.stream as StreamName, data });
    }
  }

  /** The read that shows, after a reconnect, whether events are missing. */
  catchUpRead(): { params: ReadParams; after: number } {
    return this.#read(CATCH_UP_BYTES);
  }

  /** Takes the response to a read whose `afterSeq` was `after`. */
  pulled(after: number, response: ReadResponse, now: number): void {
    this.#pulling = false;
    const before = this.log.next;
    try {
      this.#announced = Math.max(this.#announced, response.nextSeq - 1);
      this.#unsure = response.chunks.length > 0;
      const exit = readExit(response);
      if (exit !== null) this.#tellExit(exit);
      applyRead(this.log, after, response);
      // An announced event that did not arrive must not cause a busy loop.
      if (this.log.next === before) this.#stalledUntil = now + ACK_DELAY;
    } catch (error) {
      this.#fail(error as Error);
    }
  }

  /** A read failed: this process can no longer be followed, but others can. */
  pullFailed(error: Error): void {
    this.log.fail(error);
  }

  connectionLost(): void {
    this.#pulling = false;
    // The last confirmation may have been lost with the connection.
    this.#acked = 0;
    this.#unackedBytes = ACK_BYTES;
    this.#confirmedEnd = false;
  }

  /** No reader will come: terminates the process, and counts its remaining events as consumed. */
  abandon(): void {
    this.#terminates = true;
    this.log.expectNoSubscriber();
  }

  /** Returns the messages to send now. Called only while the session is connected. */
  collect(acks: boolean, now: number): Outbound[] {
    const outbound: Outbound[] = [];
    const { consumed } = this.log;
    const ended = this.log.closed && consumed === this.log.next - 1;
    if (consumed > this.#acked || (ended && !this.#confirmedEnd)) {
      if (
        this.#unackedBytes >= ACK_BYTES ||
        ended ||
        (this.#ackAt !== null && now >= this.#ackAt)
      ) {
        if (ended || (acks && consumed > 0)) outbound.push(this.#confirm(consumed, ended));
        this.#acked = consumed;
        this.#unackedBytes = 0;
        this.#ackAt = null;
        this.#confirmedEnd = ended;
      } else {
        this.#ackAt ??= now + ACK_DELAY;
      }
    }
    if (this.#terminates) {
      this.#terminates = false;
      outbound.push({
        type: "call",
        method: "process/terminate",
        params: { processId: this.processId },
      });
    }
    const behind = (this.#unsure || this.#announced >= this.log.next) && !this.log.over;
    if (behind && !this.#pulling && now >= this.#stalledUntil && this.log.room > 0) {
      this.#pulling = true;
      outbound.push({ type: "pull", ...this.#read(this.log.room) });
    }
    return outbound;
  }

  /** When `collect` should be called again. */
  pollTimeout(): number | null {
    const stalled =
      this.#stalledUntil > 0 && !this.#pulling && !this.log.over ? this.#stalledUntil : null;
    if (this.#ackAt === null) return stalled;
    return stalled === null ? this.#ackAt : Math.min(stalled, this.#ackAt);
  }

  /** A read confirms its `afterSeq`, so it begins after what was consumed. */
  #read(maxBytes: number): { params: ReadParams; after: number } {
    const after = this.log.consumed;
    return { params: { processId: this.processId, afterSeq: after, maxBytes }, after };
  }

  #confirm(seq: number, ended: boolean): Outbound {
    const { processId } = this;
    if (!ended) return { type: "notify", method: "process/ack", params: { processId, seq } };
    // If this last confirmation were lost, none would follow, and the server would keep the process
    // as long as the session. A read confirms too, and is sent again if it is lost.
    return {
      type: "call",
      method: "process/read",
      params: { processId, afterSeq: seq, maxBytes: 0 },
    };
  }

  #tellExit(exit: ExitStatus): void {
    if (this.#exitTold) return;
    this.#exitTold = true;
    this.onExit(exit);
  }

  /**
   * Ends a process that lost output, or whose events make no sense: its reader gets the error. A
   * new log confirms its remaining events, because otherwise the server would keep them as long as
   * the session.
   */
  #fail(error: Error): void {
    this.log.fail(error);
    this.log = this.#newLog("declared", this.log.next - 1);
    this.#unsure = true;
    this.abandon();
  }

  #newLog(gaps: "fatal" | "declared", after: number): ProcessLog {
    const log = new ProcessLog(this.processId, gaps, after);
    log.onConsumed = (bytes) => {
      this.#unackedBytes += bytes;
      this.onConsumed();
    };
    return log;
  }
}
