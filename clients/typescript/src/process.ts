/** A process on the machine: web streams, its exit, and its state for another client. */
import type { Connection } from "./connection.js";
import { ExecServerError, GapError, StdinClosedError } from "./errors.js";
import type { ExitStatus, ProcessEvent, ProcessLog, Subscriber, Wanted } from "./process-log.js";
import { ProcessSync } from "./process-sync.js";
import { wireSignal, type SignalName } from "./signals.js";
import { encodeBase64, toBytes, uniqueId } from "./wire.js";

/** The state from which another client continues. It can be stored as JSON, and has no token. */
export interface ProcessState {
  version: 1;
  url: string;
  sessionId: string;
  processId: string;
  /** The last event that each reader consumed; null without a reader. */
  consumed: { stdout: number | null; stderr: number | null; all: number | null };
  /** The last event that every reader consumed. */
  after: number;
  gaps: "fatal" | "declared";
  /** The exit, if it was consumed. */
  exit: ProcessLog["exit"];
  /** Whether the event `closed` was consumed. */
  closed: boolean;
}

/** The largest write to stdin in one message; larger ones are split. */
const MAX_WRITE = 1 << 20;

export class Process {
  readonly id: string;
  /**
   * Resolves when the process has exited, whether its output was read or not. Rejects if this
   * client can no longer follow the process.
   */
  readonly exited: Promise<ExitStatus>;
  readonly #connection: Connection;
  readonly #log: ProcessLog;
  readonly #url: string;
  readonly #writer = uniqueId();
  readonly #subscribers: Partial<Record<Wanted, Subscriber>> = {};
  readonly #resumed: ProcessState["consumed"] | undefined;
  #writes = 0;
  /** Settles after the current long write and the input queued behind it. */
  #longWrite: Promise<void> | null = null;
  #stdout: ReadableStream<Uint8Array> | undefined;
  #stderr: ReadableStream<Uint8Array> | undefined;
  #stdin: WritableStream<Uint8Array | string> | undefined;

  /** @internal */
  constructor(
    connection: Connection,
    sync: ProcessSync,
    url: string,
    resumed?: ProcessState["consumed"],
  ) {
    this.id = sync.processId;
    this.#connection = connection;
    this.#log = sync.log;
    this.#url = url;
    this.#resumed = resumed;
    this.exited = new Promise((resolve, reject) => {
      sync.onExit = resolve;
      this.#log.onFailed = reject;
      if (this.#log.exit !== null) resolve(this.#log.exit);
    });
    // If no caller awaits the exit, a lost session must not end the program.
    this.exited.catch(() => {});
  }

  /**
   * Output to stdout, or to the terminal. A reader that does not read blocks the process once the
   * server's log is full, unless the process was started with `onFull: "discard"`.
   */
  get stdout(): ReadableStream<Uint8Array> {
    return (this.#stdout ??= this.#stream("stdout"));
  }

  get stderr(): ReadableStream<Uint8Array> {
    return (this.#stderr ??= this.#stream("stderr"));
  }

  /** Closing the stream ends stdin. Each byte is written once, even if the connection is lost. */
  get stdin(): WritableStream<Uint8Array | string> {
    return (this.#stdin ??= new WritableStream({
      write: (data) => this.write(data),
      close: () => this.closeStdin(),
      abort: () => this.closeStdin(),
    }));
  }

  /** Everything in order: output, declared gaps, the exit, and the close. */
  async *events(): AsyncGenerator<ProcessEvent, void, void> {
    const subscriber = this.#subscribe("all");
    try {
      for (;;) {
        const event = await this.#next(subscriber);
        if (event === undefined) return;
        yield event;
      }
    } finally {
      this.#log.unsubscribe(subscriber);
    }
  }

  /** Writes and `closeStdin` are carried out in the order of their calls. */
  write(data: Uint8Array | string): Promise<void> {
    const bytes = toBytes(data);
    return this.#inOrder(bytes.length > MAX_WRITE, () => this.#write(bytes));
  }

  closeStdin(): Promise<void> {
    return this.#inOrder(false, async () => {
      await this.#connection.call("process/closeStdin", { processId: this.id });
    });
  }

  /** Sends a signal to the process group; `SIGTERM` by default. */
  async kill(signal: SignalName = "SIGTERM"): Promise<void> {
    await this.#connection.call("process/signal", {
      processId: this.id,
      signal: wireSignal(signal),
    });
  }

  /**
   * Ends the process and every descendant; true if it was running. With `graceMs` it gets SIGTERM
   * first and this much time.
   */
  async terminate(options: { graceMs?: number } = {}): Promise<boolean> {
    const { graceMs } = options;
    const mode =
      graceMs === undefined ? undefined : ({ type: "graceful", timeoutMs: graceMs } as const);
    return (await this.#connection.call("process/terminate", { processId: this.id, mode })).running;
  }

  /** Changes the size of the terminal. */
  async resize(size: { rows: number; cols: number }): Promise<void> {
    await this.#connection.call("process/resize", { processId: this.id, ...size });
  }

  /** Returns the state from which `Machine.resume` continues, in this program or another. */
  save(): ProcessState {
    if (this.#url === "") {
      throw new ExecServerError(
        "a process of Machine.local() cannot be saved: its server ends with this program; " +
          "connect to a server instead",
      );
    }
    const sessionId = this.#connection.sessionId!;
    const position = (wanted: Wanted) => {
      const subscriber = this.#subscribers[wanted];
      return subscriber === undefined ? (this.#resumed?.[wanted] ?? null) : subscriber.position - 1;
    };
    const consumed = {
      stdout: position("stdout"),
      stderr: position("stderr"),
      all: position("all"),
    };
    const { consumed: after, gaps, next } = this.#log;
    const exit = this.#log.exit !== null && this.#log.exit.seq <= after ? this.#log.exit : null;
    const closed = this.#log.closed && after === next - 1;
    return {
      version: 1,
      url: this.#url,
      sessionId,
      processId: this.id,
      consumed,
      after,
      gaps,
      exit,
      closed,
    };
  }

  /**
   * @internal Hands every event to `onEvent`, without a stream in between; resolves after the last
   * event.
   */
  async consume(onEvent: (event: ProcessEvent) => void | Promise<void>): Promise<void> {
    const subscriber = this.#subscribe("all");
    for (;;) {
      const event = this.#log.take(subscriber) ?? (await this.#next(subscriber));
      if (event === undefined) return;
      const pending = onEvent(event);
      if (pending !== undefined) await pending;
    }
  }

  /**
   * Sends input at once, unless a long write is not finished: nothing may get between its pieces.
   */
  #inOrder(long: boolean, send: () => Promise<void>): Promise<void> {
    const before = this.#longWrite;
    if (before === null && !long) return send();
    const sent = before === null ? send() : before.then(send);
    const settled = sent
      .catch(() => {})
      .then(() => {
        if (this.#longWrite === settled) this.#longWrite = null;
      });
    this.#longWrite = settled;
    return sent;
  }

  async #write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; at += MAX_WRITE) {
      const chunk = encodeBase64(bytes.subarray(at, at + MAX_WRITE));
      const writeId = `${this.#writer}-${this.#writes++}`;
      const params = { processId: this.id, chunk, writeId };
      const { status } = await this.#connection.call("process/write", params);
      if (status !== "accepted") throw new StdinClosedError(this.id, status);
    }
  }

  #subscribe(wanted: Wanted): Subscriber {
    const consumed = this.#resumed?.[wanted];
    const subscriber = this.#log.subscribe(
      wanted,
      typeof consumed === "number" ? consumed + 1 : undefined,
    );
    this.#subscribers[wanted] = subscriber;
    return subscriber;
  }

  #stream(wanted: "stdout" | "stderr"): ReadableStream<Uint8Array> {
    const subscriber = this.#subscribe(wanted);
    return new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const event = await this.#next(subscriber);
          if (event?.type === "gap") throw new GapError(this.id, event.droppedBytes);
          if (event?.type === "output") controller.enqueue(event.data);
          else controller.close();
        },
        cancel: () => this.#log.unsubscribe(subscriber),
      },
      // No buffering: output that was taken from the log counts as consumed.
      { highWaterMark: 0 },
    );
  }

  /** The next event; undefined at the end. */
  async #next(subscriber: Subscriber): Promise<ProcessEvent | undefined> {
    for (;;) {
      const event = this.#log.take(subscriber);
      if (event !== undefined) return event;
      if (this.#log.failure !== null) throw this.#log.failure;
      if (this.#log.closed) return undefined;
      await new Promise<void>((resolve) => (subscriber.wake = resolve));
    }
  }
}
