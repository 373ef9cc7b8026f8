/** Changes of files. A watch ends with its connection and is established again, with `rescan`. */
import type { Connection } from "./connection.js";
import { DisconnectedError } from "./errors.js";
import { fromUri } from "./paths.js";
import type { Sandbox } from "./sandbox.js";
import { uniqueId } from "./wire.js";

export interface Change {
  path: string;
  kind: "created" | "modified" | "removed" | "renamed";
  /** The old name of something that was renamed. */
  from?: string;
}

export interface Changes {
  changes: Change[];
  /** Changes were lost: look again at everything. */
  rescan: boolean;
}

export interface WatchOptions {
  recursive?: boolean;
  sandbox?: Sandbox;
  /** Aborting ends the watch. */
  signal?: AbortSignal;
}

/** Changes that nobody takes are merged; beyond this many they are dropped, and `rescan` says so. */
const MAX_CHANGES = 10_000;

export class Watch implements AsyncIterable<Changes> {
  /** The watched path in canonical form. */
  path = "";
  readonly #id = uniqueId();
  readonly #connection: Connection;
  readonly #params: object;
  #pending: Changes | null = null;
  #failure: unknown;
  #closed = false;
  #wake: (() => void) | null = null;

  /** @internal */
  static async open(connection: Connection, params: object, options: WatchOptions): Promise<Watch> {
    options.signal?.throwIfAborted();
    const watch = new Watch(connection, { ...params, recursive: options.recursive });
    await watch.#establish();
    options.signal?.addEventListener("abort", () => void watch.close(), { once: true });
    return watch;
  }

  private constructor(connection: Connection, params: object) {
    this.#connection = connection;
    this.#params = { ...params, watchId: this.#id };
  }

  /** What has changed since the last call; null after `close`. */
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
    this.#connection.removeLease(this.#id);
    await this.#connection.call("fs/unwatch", { watchId: this.#id }).catch(() => {});
  }

  async #establish(): Promise<void> {
    for (;;) {
      this.#connection.addLease(this.#id, {
        notified: (params) => this.#notified(params),
        lost: (error) => this.#lost(error),
      });
      try {
        this.path = fromUri((await this.#connection.call<{ path: string }>("fs/watch", this.#params)).path);
        return;
      } catch (error) {
        this.#connection.removeLease(this.#id);
        // Nothing of the lost connection is left, so the request can be made again.
        if (!(error instanceof DisconnectedError)) throw error;
      }
    }
  }

  #notified(params: Record<string, unknown>): void {
    const changes = (params.changes ?? []) as Change[];
    this.#pending ??= { changes: [], rescan: false };
    for (const { path, kind, from } of changes) {
      const change: Change = { path: fromUri(path), kind };
      if (from !== undefined) change.from = fromUri(from);
      this.#pending.changes.push(change);
    }
    this.#pending.rescan ||= params.rescan === true;
    if (this.#pending.changes.length > MAX_CHANGES) this.#pending = { changes: [], rescan: true };
    this.#tell();
  }

  #lost(error: Error): void {
    if (this.#closed || this.path === "") return;
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
