/** HTTP requests from the machine. A body ends with its connection and cannot be resumed. */
import type { Connection, Lease } from "./connection.js";
import { DisconnectedError, ExecServerError } from "./errors.js";
import type { BodyDeltaNotification, HttpRequestHeader, HttpRequestParams } from "./generated.js";
import { decodeBase64, encodeBase64, toBytes, uniqueId } from "./wire.js";

export interface HttpInit {
  method?: string;
  headers?: ConstructorParameters<typeof Headers>[0];
  /** Headers to whose value the server appends one of its environment variables. */
  headersFromEnv?: HttpRequestHeader[];
  body?: string | Uint8Array;
  redirect?: "follow" | "manual";
  /** How long the headers of the response may take, in milliseconds. */
  timeout?: number;
  signal?: AbortSignal;
}

/** Responses with these statuses have no body. */
const NULL_BODY = new Set([101, 103, 204, 205, 304]);

export class Http {
  readonly #connection: Connection;

  /** @internal */
  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Like the global `fetch`, but from the machine, and without cookies or a cache. */
  async fetch(url: string | URL, init: HttpInit = {}): Promise<Response> {
    init.signal?.throwIfAborted();
    const requestId = uniqueId();
    const headers = [...new Headers(init.headers)].map(([name, value]) => ({ name, value }));
    const params: HttpRequestParams = {
      requestId,
      url: String(url),
      method: (init.method ?? "GET").toUpperCase(),
      headers: [...headers, ...(init.headersFromEnv ?? [])],
      bodyBase64: init.body === undefined ? undefined : encodeBase64(toBytes(init.body)),
      redirectPolicy: init.redirect === "manual" ? "stop" : "follow",
      timeoutMs: init.timeout,
      streamResponse: true,
      acks: this.#connection.acks || undefined,
    };
    const body = new Body(this.#connection, requestId, init.signal);
    const onSend = () => this.#connection.addLease(requestId, body);
    try {
      const head = await this.#connection.call("http/request", params, {
        signal: init.signal,
        onSend,
      });
      const pairs = head.headers.map(({ name, value }) => [name, value] as [string, string]);
      const stream = body.stream();
      const empty = params.method === "HEAD" || NULL_BODY.has(head.status);
      if (empty) void stream.cancel();
      return new Response(empty ? null : stream, { status: head.status, headers: pairs });
    } catch (error) {
      body.end(error as Error);
      throw error;
    }
  }
}

/**
 * The body of one response. Only what was consumed is acknowledged, so a slow reader holds back the
 * download.
 */
class Body implements Lease {
  readonly #deltas: BodyDeltaNotification[] = [];
  #failure: Error | null = null;
  #ended = false;
  #wake: (() => void) | null = null;
  readonly #abort = () => this.#cancel(this.signal!.reason);

  constructor(
    private readonly connection: Connection,
    private readonly requestId: string,
    private readonly signal: AbortSignal | undefined,
  ) {
    signal?.addEventListener("abort", this.#abort, { once: true });
  }

  notified(params: object): void {
    const delta = params as BodyDeltaNotification;
    this.#deltas.push(delta);
    if (delta.done)
      this.end(
        delta.error
          ? new ExecServerError(`the response body is incomplete: ${delta.error}`)
          : null,
      );
    this.#tell();
  }

  lost(error: Error): void {
    const reason =
      "the connection was lost before the end of the response body; " +
      "check, then decide whether to repeat the request";
    this.end(
      error instanceof DisconnectedError ? new DisconnectedError("http/request", reason) : error,
    );
  }

  stream(): ReadableStream<Uint8Array> {
    return new ReadableStream(
      {
        pull: async (controller) => {
          for (;;) {
            const delta = this.#deltas.shift();
            if (delta !== undefined) {
              const { requestId } = this;
              if (this.connection.acks)
                this.connection.notify("http/request/ack", { requestId, seq: delta.seq });
              if (delta.deltaBase64 === "") continue;
              return controller.enqueue(decodeBase64(delta.deltaBase64));
            }
            if (this.#failure !== null) throw this.#failure;
            if (this.#ended) return controller.close();
            await new Promise<void>((resolve) => (this.#wake = resolve));
          }
        },
        cancel: () => this.#cancel(null),
      },
      { highWaterMark: 0 },
    );
  }

  end(error: Error | null): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#failure = error;
    this.connection.removeLease(this.requestId);
    this.signal?.removeEventListener("abort", this.#abort);
    this.#tell();
  }

  #cancel(reason: Error | null): void {
    if (this.#ended) return;
    this.end(reason);
    this.connection.call("http/cancel", { requestId: this.requestId }).catch(() => {});
  }

  #tell(): void {
    const wake = this.#wake;
    this.#wake = null;
    wake?.();
  }
}
