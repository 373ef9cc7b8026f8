/** Search in files, on the machine. A search ends with its connection. */
import type { Connection } from "./connection.js";
import type {
  FsSearchResponse,
  SearchMatch as WireMatch,
  SearchResultsNotification,
} from "./generated.js";
import { fromUri, toUri, type PathLike } from "./paths.js";
import { wireSandbox, type Sandbox } from "./sandbox.js";
import { uniqueId } from "./wire.js";

export interface SearchOptions {
  literal?: boolean;
  ignoreCase?: boolean;
  word?: boolean;
  /** The files to search; a leading `!` excludes. */
  globs?: string[];
  hidden?: boolean;
  /** Include what .gitignore excludes. */
  ignored?: boolean;
  /** Lines of context. */
  before?: number;
  after?: number;
  maxMatches?: number;
  sandbox?: Sandbox;
  signal?: AbortSignal;
}

/** `submatches` are byte offsets into `text`; `path` is a native path. */
export type SearchMatch = WireMatch;
export type SearchSummary = FsSearchResponse;

export class Search implements AsyncIterable<SearchMatch> {
  /** Resolves at the end of the search. */
  readonly summary: Promise<SearchSummary>;
  readonly #id = uniqueId();
  readonly #connection: Connection;
  #found: SearchMatch[] = [];
  #ended = false;
  #wake: (() => void) | null = null;

  /** @internal */
  constructor(connection: Connection, pattern: string, path: PathLike, options: SearchOptions) {
    this.#connection = connection;
    const { sandbox, signal, ...rest } = options;
    const params = {
      path: toUri(path),
      searchId: this.#id,
      pattern,
      ...rest,
      sandbox: wireSandbox(sandbox),
    };
    const lease = {
      notified: (params: object) => {
        const { results } = params as SearchResultsNotification;
        for (const match of results) this.#found.push({ ...match, path: fromUri(match.path) });
        this.#tell();
      },
      // The request fails with the connection, and reports the loss itself.
      lost: () => {},
    };
    const onSend = () => connection.addLease(this.#id, lease);
    const cancel = () => void this.cancel();
    signal?.addEventListener("abort", cancel, { once: true });
    this.summary = connection.call("fs/search", params, { signal, onSend }).finally(() => {
      signal?.removeEventListener("abort", cancel);
      connection.removeLease(this.#id);
      this.#ended = true;
      this.#tell();
    });
    this.summary.catch(() => {});
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<SearchMatch, void, void> {
    try {
      for (;;) {
        const found = this.#found;
        this.#found = [];
        yield* found;
        if (this.#found.length > 0) continue;
        if (this.#ended) break;
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
      await this.summary;
    } finally {
      if (!this.#ended) await this.cancel();
    }
  }

  /** All matches, at once. */
  async toArray(): Promise<SearchMatch[]> {
    const matches: SearchMatch[] = [];
    for await (const match of this) matches.push(match);
    return matches;
  }

  async cancel(): Promise<void> {
    await this.#connection.call("fs/cancelSearch", { searchId: this.#id }).catch(() => {});
  }

  #tell(): void {
    const wake = this.#wake;
    this.#wake = null;
    wake?.();
  }
}
