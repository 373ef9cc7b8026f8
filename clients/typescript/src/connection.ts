/**
 * The driver: owns the transport, performs what `Recovery` decides, and carries calls, responses
 * and notifications. Everything above it sees one connection, which ends only with the session.
 */
import { PendingCalls, type Call } from "./calls.js";
import {
  ClosedError,
  ConnectError,
  DisconnectedError,
  ProtocolError,
  ServerError,
  SessionLostError,
} from "./errors.js";
import type { StartParams } from "./generated.js";
import { KeepAlive } from "./keep-alive.js";
import type { ProcessSync } from "./process-sync.js";
import {
  DEFAULT_RECOVERY,
  Recovery,
  type Action,
  type GiveUpReason,
  type RecoveryPolicy,
} from "./recovery.js";
import type { Dialer, Transport } from "./transport.js";
import type {
  InitializeParams,
  InitializeResponse,
  ReadParams,
  ReadResponse,
} from "./generated.js";
import type { Method, Params, Result } from "./methods.js";
import { isReplayable } from "./wire.js";

export interface ConnectionOptions {
  clientName: string;
  /** How long the first attempt to connect may take, in milliseconds. */
  connectTimeout: number;
  /**
   * How long the session survives without a connection, in milliseconds; the server's choice if
   * absent.
   */
  detachedTtl?: number;
  recovery?: Partial<RecoveryPolicy>;
  onState?: (state: ConnectionState) => void;
}

export type ConnectionState =
  | { type: "connected" }
  | { type: "recovering"; failedAttempts: number }
  | { type: "failed"; error: Error }
  | { type: "closed" };

/** A resource at the server that ends with its connection: a watch, a search, an HTTP body. */
export interface Lease {
  notified(params: object): void;
  lost(error: Error): void;
}

export interface CallOptions {
  /** Aborting gives up waiting; the request may still be carried out. */
  signal?: AbortSignal;
  /** Called each time before the request is sent. */
  onSend?: () => void;
}

/** The largest message in either direction. */
const MAX_MESSAGE = 64 << 20;
/** With more processes, `initialize` has no positions: they might not fit into the message. */
const MAX_POSITIONS = 4096;

export class Connection {
  sessionId: string | null;
  readonly #recovery: Recovery;
  readonly #calls = new PendingCalls();
  readonly #processes = new Map<string, ProcessSync>();
  readonly #leases = new Map<string, Lease>();
  /** Calls that wait for a connection. */
  #waiting: Call[] = [];
  #transport: Transport | null = null;
  #dialing: AbortController | null = null;
  #acks = false;
  #catchingUp = 0;
  #lastFailure: Error | null = null;
  #over: Error | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #timerAt = Infinity;
  readonly #keepAlive = new KeepAlive();
  #opened: { resolve(): void; reject(error: Error): void } | null = null;

  constructor(
    readonly dialer: Dialer,
    readonly options: ConnectionOptions,
    resumeSessionId: string | null = null,
  ) {
    this.sessionId = resumeSessionId;
    const policy = { ...DEFAULT_RECOVERY, ...options.recovery };
    this.#recovery = new Recovery(policy, options.connectTimeout, performance.now(), Math.random);
  }

  open(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#opened = { resolve, reject };
      this.#perform();
    });
  }

  /** Sends a request once connected, and again after a lost connection if that is harmless. */
  call<M extends Method>(
    method: M,
    params: Params<M>,
    { signal, onSend }: CallOptions = {},
  ): Promise<Result<M>> {
    return new Promise((resolve, reject) => {
      if (this.#over !== null) return reject(this.#over);
      const text = JSON.stringify(params);
      if (text.length > MAX_MESSAGE - 1024) {
        const error = `${method}: ${text.length} characters do not fit into a message of ${MAX_MESSAGE} bytes; send smaller pieces`;
        return reject(new RangeError(error));
      }
      const call: Call = {
        method,
        params: text,
        replay: isReplayable(method, params),
        losses: 0,
        onSend,
        resolve: resolve as (result: unknown) => void,
        reject,
      };
      if (signal) {
        const abort = () => {
          call.abandoned = true;
          reject(signal.reason);
        };
        if (signal.aborted) return abort();
        signal.addEventListener("abort", abort, { once: true });
        const forget = () => signal.removeEventListener("abort", abort);
        call.resolve = (result) => (forget(), resolve(result as Result<M>));
        call.reject = (error) => (forget(), reject(error));
      }
      this.#submit(call);
    });
  }

  notify(method: "process/ack" | "http/request/ack", params: object): void {
    if (this.#recovery.connected) this.#send(JSON.stringify({ method, params }));
  }

  /** Starts a process whose events go to `sync`. */
  async start(sync: ProcessSync, params: StartParams, signal?: AbortSignal): Promise<void> {
    // Track the process when the request is sent. Before that, a catch-up would fail, because the
    // server does not know the process. The response would be too late: events may precede it.
    const onSend = () => this.track(sync);
    try {
      await this.call("process/start", params, { signal, onSend });
    } catch (error) {
      // The process may have started, but no caller gets a handle.
      if (!(error instanceof ServerError)) sync.abandon();
      else this.#processes.delete(sync.processId);
      throw error;
    }
  }

  track(sync: ProcessSync): void {
    if (this.#processes.has(sync.processId)) {
      throw new RangeError(`process "${sync.processId}" has a handle already; use that one`);
    }
    sync.onConsumed = () => this.#sendFor(sync);
    this.#processes.set(sync.processId, sync);
    if (this.#recovery.connected) this.#sendFor(sync);
  }

  /** Calls `lost` of the lease when the connection ends. */
  addLease(id: string, lease: Lease): void {
    this.#leases.set(id, lease);
  }

  removeLease(id: string): void {
    this.#leases.delete(id);
  }

  get acks(): boolean {
    return this.#acks;
  }

  /** Ends the connection. With `closeSession` the session and its processes end too. */
  async close(closeSession: boolean): Promise<void> {
    if (this.#over !== null) return;
    if (closeSession && this.#recovery.connected) {
      await this.call("session/close", {}).catch(() => {});
    }
    if (this.#over === null) this.#end(new ClosedError(), { type: "closed" });
  }

  #submit(call: Call): void {
    if (!this.#recovery.connected) return void this.#waiting.push(call);
    call.onSend?.();
    this.#send(this.#calls.send(call));
  }

  #send(text: string): void {
    this.#transport?.send(text);
  }

  #perform(): void {
    // After the end of the session, no action of the recovery may be performed.
    if (this.#over !== null) return;
    for (let action = this.#recovery.pollAction(); action; action = this.#recovery.pollAction()) {
      this.#performOne(action);
    }
    this.#schedule();
  }

  #performOne(action: Action): void {
    if (action.type === "dial") {
      void this.#dial(action.generation);
      const recovering = this.#recovery.recovering;
      if (recovering)
        this.options.onState?.({ type: "recovering", failedAttempts: recovering.failed });
    } else if (action.type === "hangUp") {
      const { recovering, policy } = this.#recovery;
      const seconds = (recovering ? policy.attempt : this.options.connectTimeout) / 1000;
      this.#lastFailure = new ConnectError(
        `the server did not answer within ${seconds} s`,
      );
      this.#dropTransport();
    } else if (action.type === "catchUp") {
      this.#catchUp(action.generation);
    } else if (action.type === "admit") {
      this.#admit();
    } else {
      const error = this.#finalError(action.reason);
      this.#end(error, { type: "failed", error });
    }
  }

  async #dial(generation: number): Promise<void> {
    const dialing = new AbortController();
    this.#dialing = dialing;
    const isCurrent = () => this.#dialing === dialing && this.#over === null;
    try {
      const transport = await this.dialer.dial(
        {
          onMessage: (text) => isCurrent() && this.#receive(generation, text),
          onClosed: (reason) => isCurrent() && this.#lost(generation, new ConnectError(reason)),
        },
        dialing.signal,
      );
      if (!isCurrent()) return transport.close();
      this.#transport = transport;
      this.#initialize(generation);
    } catch (error) {
      if (!isCurrent()) return;
      this.#lastFailure = error as Error;
      this.#recovery.handleLost(
        generation,
        (error as ConnectError).permanent === true,
        performance.now(),
      );
      this.#perform();
    }
  }

  #initialize(generation: number): void {
    const { clientName, detachedTtl } = this.options;
    const params: InitializeParams = { clientName, acks: true };
    if (this.sessionId !== null) params.resumeSessionId = this.sessionId;
    // JavaScript cannot represent the maximum of 2^64 - 1, and no server grants even this much.
    if (detachedTtl !== undefined)
      params.detachedTtlMs = Math.min(detachedTtl, Number.MAX_SAFE_INTEGER);
    if (this.sessionId !== null && this.#processes.size <= MAX_POSITIONS) {
      params.positions = Object.fromEntries(
        [...this.#processes].map(([id, sync]) => [id, sync.log.consumed]),
      );
    }
    const resolve = (result: unknown) =>
      this.#initialized(generation, result as InitializeResponse | null);
    const reject = (error: Error) => this.#refused(generation, error);
    const call = {
      method: "initialize",
      params: JSON.stringify(params),
      replay: false,
      losses: 0,
      resolve,
      reject,
    };
    this.#send(this.#calls.send(call));
  }

  #initialized(generation: number, result: InitializeResponse | null): void {
    if (typeof result?.sessionId !== "string") {
      return this.#refused(
        generation,
        new ProtocolError("the response to initialize has no sessionId"),
      );
    }
    if (this.sessionId !== null && result.sessionId !== this.sessionId) {
      return this.#refused(
        generation,
        new ProtocolError(
          `the server resumed session ${JSON.stringify(result.sessionId).slice(0, 100)} instead of ` +
            `"${this.sessionId}"`,
        ),
      );
    }
    this.sessionId = result.sessionId;
    this.#acks = result.acks === true;
    this.#known = new Set(Object.keys(result.positions ?? {}));
    this.#send('{"method":"initialized"}');
    this.#recovery.handleInitialized(generation, performance.now());
    this.#perform();
  }

  /** Processes whose position the server returned: after a resume it sends their events unasked. */
  #known = new Set<string>();

  #refused(generation: number, error: Error): void {
    // The connection was lost, or the session ended; both are handled elsewhere.
    if (error instanceof DisconnectedError || this.#over !== null) return;
    this.#lastFailure = error;
    // The server may not have noticed yet that the old connection is dead.
    const attached = error instanceof ServerError && error.code === -32010;
    this.#dropTransport();
    this.#recovery.handleLost(generation, !attached, performance.now());
    this.#perform();
  }

  /** Reads the events that each process missed, unless the server sends them unasked. */
  #catchUp(generation: number): void {
    this.#catchingUp = 1;
    const caughtUp = () => {
      this.#catchingUp -= 1;
      if (this.#catchingUp > 0) return;
      this.#recovery.handleCaughtUp(generation, performance.now());
      this.#perform();
    };
    for (const sync of this.#processes.values()) {
      if (this.#known.has(sync.processId)) continue;
      this.#catchingUp += 1;
      const { params, after } = sync.catchUpRead();
      this.#pull(sync, params, after, caughtUp);
    }
    caughtUp();
  }

  #pull(sync: ProcessSync, params: ReadParams, after: number, then: () => void): void {
    const resolve = (result: unknown) => {
      sync.pulled(after, result as ReadResponse, performance.now());
      this.#sendFor(sync);
      then();
    };
    const reject = (error: Error) => {
      if (error instanceof DisconnectedError) return;
      sync.pullFailed(error);
      this.#sendFor(sync);
      then();
    };
    const call = {
      method: "process/read",
      params: JSON.stringify(params),
      replay: false,
      losses: 0,
      resolve,
      reject,
    };
    this.#send(this.#calls.send(call));
  }

  #admit(): void {
    this.#lastFailure = null;
    this.#keepAlive.reset();
    for (const call of this.#calls.takeLost()) this.#submit(call);
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const call of waiting) if (!call.abandoned) this.#submit(call);
    for (const sync of this.#processes.values()) this.#sendFor(sync);
    this.options.onState?.({ type: "connected" });
    this.#opened?.resolve();
    this.#opened = null;
  }

  #sendFor(sync: ProcessSync): void {
    if (!this.#recovery.connected) return;
    for (const outbound of sync.collect(this.#acks, performance.now())) {
      if (outbound.type === "notify") {
        this.notify(outbound.method, outbound.params);
      } else if (outbound.type === "call") {
        this.call(outbound.method, outbound.params).catch(() => {});
      } else {
        this.#pull(sync, outbound.params, outbound.after, () => {});
      }
    }
    if (sync.done && this.#processes.get(sync.processId) === sync)
      this.#processes.delete(sync.processId);
    const at = sync.pollTimeout();
    if (at !== null) this.#scheduleAt(at);
  }

  #receive(generation: number, text: string): void {
    this.#keepAlive.received();
    let message: Record<string, any>;
    try {
      message = JSON.parse(text);
      if (typeof message !== "object" || message === null)
        throw new SyntaxError(JSON.stringify(text.slice(0, 100)));
    } catch (error) {
      const broken = new ProtocolError(
        `the server sent a message that is not a JSON object: ${(error as Error).message}`,
      );
      return this.#lost(generation, broken, true);
    }
    if (message.method === undefined) return this.#respond(message);
    if (message.id !== undefined && message.id !== null) {
      const error = {
        code: -32601,
        message: `method "${message.method}" is not known to this client`,
      };
      return this.#send(JSON.stringify({ id: message.id, error }));
    }
    try {
      this.#notified(message.method, message.params ?? {});
    } catch (error) {
      const broken = new ProtocolError(
        `the server sent an invalid ${message.method}: ${(error as Error).message}`,
      );
      this.#lost(generation, broken, true);
    }
  }

  #notified(method: string, params: Record<string, any>): void {
    if (params.sessionId !== undefined) return;
    if (params.processId !== undefined) {
      const sync = this.#processes.get(params.processId);
      if (sync === undefined || !/^process\/(output|exited|closed)$/.test(method)) return;
      sync.notified(method, params);
      this.#sendFor(sync);
    } else {
      this.#leases.get(params.watchId ?? params.searchId ?? params.requestId)?.notified(params);
    }
  }

  #respond(message: Record<string, any>): void {
    const call = this.#calls.answered(message.id);
    if (call === undefined) return;
    if (message.error !== undefined && message.error !== null)
      call.reject(new ServerError(message.error));
    else call.resolve(message.result ?? null);
  }

  #lost(generation: number, error: Error, permanent = false): void {
    if (generation !== this.#recovery.generation) return;
    this.#lastFailure ??= error;
    // Before `#dropTransport`, so that a call that a lease makes in `lost` waits for the next
    // connection.
    this.#recovery.handleLost(generation, permanent || !this.dialer.canRedial, performance.now());
    this.#dropTransport();
    this.#perform();
  }

  #dropTransport(): void {
    this.#dialing?.abort();
    this.#dialing = null;
    this.#transport?.close();
    this.#transport = null;
    for (const sync of this.#processes.values()) sync.connectionLost();
    for (const call of this.#calls.lose()) call.reject(new DisconnectedError(call.method));
    const leases = [...this.#leases.values()];
    this.#leases.clear();
    for (const lease of leases) lease.lost(new DisconnectedError("the connection"));
  }

  #finalError(reason: GiveUpReason): Error {
    const last = this.#lastFailure;
    const unknown = last instanceof ServerError && last.kind === "unknownSession";
    if (reason === "neverConnected" && !unknown) {
      return last ?? new ConnectError("the connection ended before initialize");
    }
    if (last instanceof ProtocolError) return last;
    const cause = last?.message ?? "the connection was lost";
    if (reason === "deadline") {
      const seconds = this.#recovery.policy.deadline / 1000;
      return new SessionLostError(
        `no connection to the server for ${seconds} s; the last attempt: ${cause}`,
      );
    }
    return new SessionLostError(`session ${this.sessionId} is lost: ${cause}`, { cause: last });
  }

  /** Ends the connection, and fails all pending calls, processes and leases. Called once. */
  #end(error: Error, state: ConnectionState): void {
    this.#over = error;
    clearTimeout(this.#timer);
    this.#dialing?.abort();
    this.#transport?.close();
    this.#transport = null;
    for (const call of [...this.#calls.takeAll(), ...this.#waiting]) call.reject(error);
    this.#waiting = [];
    for (const sync of this.#processes.values()) sync.log.fail(error);
    this.#processes.clear();
    for (const lease of this.#leases.values()) lease.lost(error);
    this.#leases.clear();
    this.options.onState?.(state);
    this.#opened?.reject(error);
    this.#opened = null;
  }

  #schedule(): void {
    const at = this.#recovery.pollTimeout();
    if (at !== null) this.#scheduleAt(at);
    if (this.#recovery.connected && this.dialer.canRedial)
      this.#scheduleAt(performance.now() + this.#keepAlive.interval);
  }

  #scheduleAt(at: number): void {
    if (this.#over !== null || at >= this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = at;
    this.#timer = setTimeout(() => this.#timeout(), Math.max(0, at - performance.now()));
  }

  #timeout(): void {
    this.#timerAt = Infinity;
    this.#recovery.handleTimeout(performance.now());
    if (this.#recovery.connected) {
      for (const sync of this.#processes.values()) this.#sendFor(sync);
      if (this.dialer.canRedial) this.#probe();
    }
    this.#perform();
  }

  #probe(): void {
    const verdict = this.#keepAlive.tick(performance.now());
    if (verdict === "probe") this.call("environment/status", {}).catch(() => {});
    if (verdict === "dead")
      this.#lost(this.#recovery.generation, new ConnectError("the server stopped answering"));
  }
}
