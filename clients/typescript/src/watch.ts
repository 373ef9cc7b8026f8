/** File changes. A watch that is lost with its connection is established again: see `rescan`. */
import type { Connection } from "./connection.js";
import { DisconnectedError } from "./errors.js";
import type { ChangedNotification, FileChange, FsWatchParams } from "./generated.js";
import { fromUri, toUri, type PathLike } from "./paths.js";
import { type Sandbox, wireSandbox } from "./sandbox.js";
import { uniqueId } from "./wire.js";

export interface Change {
  path: string;
  kind: FileChange["kind"];
  /** The old path, if `kind` is `renamed`. */
  from?: string;
}

export interface Changes {
  changes: Change[];
  /** Whether changes were lost: look at everything again. */
  rescan: boolean;
}

export interface WatchOptions {
  recursive?: boolean;
  sandbox?: Sandbox;
  /** Aborting ends the watch. */
  signal?: AbortSignal;
}

/** Changes are collected until `next`; beyond this many they are dropped, and `rescan` is set. */
const MAX_CHANGES = 10_000;

export class Watch implements AsyncIterable<Changes> {
  /** The watched path in canonical form. */
  path = "";
  readonly #id = uniqueId();
  readonly #connection: Connection;
  readonly #params: FsWatchParams;
  readonly #signal: AbortSignal | undefined;
  readonly #abort = () => void this.close();
  #pending: Changes | null = null;
  #failure: unknown;
  #established = false;
  #closed = false;
  #wake: (() => void) | null = null;

  /** @internal */
  static async open(connection: Connection, path: PathLike, options: WatchOptions): Promise<Watch> {
    options.signal?.throwIfAborted();
    const watch = new Watch(connection, path, options);
    try {
      await watch.#establish();
    } catch (error) {
      options.signal?.removeEventListener("abort", watch.#abort);
      throw error;
    }
    return watch;
  }

  private constructor(
    connection: Connection,
    path: PathLike,
    { recursive, sandbox, signal }: WatchOptions,
  ) {
    this.#connection = connection;
    this.#params = {
      path: toUri(path),
      watchId: this.#id,
      recursive,
      sandbox: wireSandbox(sandbox),
    };
    this.#signal = signal;
    signal?.addEventListener("abort", this.#abort, { once: true });
  }

  /** The changes since the last call; null after `close`. */
  async next(): Promise<Changes | null> {
    for (;;) {
      if (this.#closed) return null;
      const pending = this.#pending;
      this.#pending = null;
      if (pending !== null) return pending;
      if (this.#failure !== undefined) throw this.#failure;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Changes, void, void> {
    try {
      for (let next = await this.next(); next !== null; next = await this.next()) yield next;
    } finally {
      await this.close();
    }
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#tell();
    this.#signal?.removeEventListener("abort", this.#abort);
    await this.#unwatch();
  }

  async #unwatch(): Promise<void> {
    this.#connection.removeLease(this.#id);
    await this.#connection.call("fs/unwatch", { watchId: this.#id }).catch(() => {});
  }

  async #establish(): Promise<void> {
    const lease = { notified: this.#notified.bind(this), lost: this.#lost.bind(this) };
    const onSend = () => this.#connection.addLease(this.#id, lease);
    while (!this.#closed && !this.#established) {
      try {
        const options = { signal: this.#signal, onSend };
        const { path } = await this.#connection.call("fs/watch", this.#params, options);
        this.path = fromUri(path);
        this.#established = true;
      } catch (error) {
        this.#connection.removeLease(this.#id);
        // The watch ended with the lost connection, so the request can be made again.
        if (!(error instanceof DisconnectedError)) throw error;
      }
    }
    // `close` came in the meantime, and the server may have handled fs/unwatch before fs/watch.
    if (this.#closed) await this.#unwatch();
  }

  #notified(params: object): void {
    const { changes, rescan } = params as ChangedNotification;
    this.#pending ??= { changes: [], rescan: false };
    for (const { path, kind, from } of changes) {
      const change: Change = { path: fromUri(path), kind };
      if (from) change.from = fromUri(from);
      this.#pending.changes.push(change);
    }
    this.#pending.rescan ||= rescan === true;
    if (this.#pending.changes.length > MAX_CHANGES) this.#pending = { changes: [], rescan: true };
    this.#tell();
  }

  #lost(error: Error): void {
    // For a watch that is not established yet, `#establish` repeats the request.
    if (this.#closed || !this.#established) return;
    this.#established = false;
    if (!(error instanceof DisconnectedError)) return this.#fail(error);
    this.#establish().then(
      () => {
        this.#pending = { changes: this.#pending?.changes ?? [], rescan: true };
        this.#tell();
      },
      (failure) => this.#fail(failure),
    );
  }

  #fail(error: unknown): void {
    this.#failure = error;
    this.#tell();
  }

  #tell(): void {
    const wake = this.#wake;
    this.#wake = null;
    wake?.();
  }
}
