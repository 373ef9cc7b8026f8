/** The machine that a server runs on: processes, files, HTTP. One `Machine` is one session. */
import { Connection, type ConnectionState } from "./connection.js";
import { collect, type ExecOptions, type ExecResult } from "./exec.js";
import { FileSystem, type GlobOptions } from "./fs.js";
import type {
  EnvironmentInfo,
  LimitsRequest,
  NetworkRules,
  OnFull,
  StartParams,
  TerminalSize,
} from "./generated.js";
import { Http } from "./http.js";
import type { Method, Params, Result } from "./methods.js";
import { toUri, fromUri, type PathLike } from "./paths.js";
import { Process, type ProcessState } from "./process.js";
import { ProcessSync } from "./process-sync.js";
import type { RecoveryPolicy } from "./recovery.js";
import { wireSandbox, type Sandbox } from "./sandbox.js";
import type { Search, SearchOptions } from "./search.js";
import type { Dialer } from "./transport.js";
import type { Watch, WatchOptions } from "./watch.js";
import { WebSocketDialer, type Token } from "./websocket.js";
import { uniqueId } from "./wire.js";

export interface ConnectOptions {
  /** The token, or a function that returns it and is called before each connection. */
  token?: Token;
  /** Shown to the operator of the server. */
  clientName?: string;
  /** How long the first attempt may take, in milliseconds; 10,000 by default. */
  connectTimeout?: number;
  /**
   * How long the session survives without a connection, in milliseconds; by default the server's
   * setting, which is 30,000 unless its operator changed it.
   */
  detachedTtl?: number;
  recovery?: Partial<RecoveryPolicy>;
  /**
   * Called when the connection is made, restored, given up or closed, and before each attempt to
   * restore it.
   */
  onState?: (state: ConnectionState) => void;
}

export interface LocalOptions extends Omit<ConnectOptions, "token"> {
  /** The path of the server; by default, the installed one is found. */
  binary?: string;
  /** Additional arguments for the server. */
  args?: string[];
}

export interface SpawnOptions {
  /** The working directory; the server's by default. */
  cwd?: PathLike;
  /** Variables on top of the inherited ones. */
  env?: Record<string, string>;
  /**
   * Which variables of the server the process inherits; never those with KEY, SECRET or TOKEN in
   * their names. Default: `all`.
   */
  inheritEnv?: "all" | "core" | "none";
  /** Run in a terminal: `true`, or its size. */
  tty?: boolean | TerminalSize;
  /** `pipe` (default) keeps stdin open for writes; `ignore` is /dev/null. */
  stdin?: "pipe" | "ignore";
  /** Milliseconds after which the server ends the process and all its descendants. */
  timeout?: number;
  sandbox?: Sandbox;
  /** See docs/limits.md. */
  limits?: LimitsRequest;
  /** Hosts that the process may reach; see docs/network.md. */
  network?: NetworkRules;
  /** When the server's log is full: `block` the process (default) or `discard` old output. */
  onFull?: OnFull;
  /** When the process exits, kill all its descendants that still run. */
  killOnExit?: boolean;
  arg0?: string;
  /** Aborting terminates the process and all its descendants. */
  signal?: AbortSignal;
}

type OptionalIfEmpty<P> = {} extends P ? [params?: P] : [params: P];

export class Machine {
  readonly fs: FileSystem;
  readonly http: Http;
  readonly #connection: Connection;
  readonly #url: string;
  #info: Promise<EnvironmentInfo> | undefined;

  private constructor(connection: Connection, url: string) {
    this.#connection = connection;
    this.#url = url;
    this.fs = new FileSystem(connection);
    this.http = new Http(connection);
  }

  /**
   * Connects to a server: `ws://HOST:PORT`, `wss://HOST:PORT`, or `unix:///PATH` (not in browsers).
   */
  static async connect(url: string | URL, options: ConnectOptions = {}): Promise<Machine> {
    const dialer = new WebSocketDialer(url, options.token);
    return Machine.#open(dialer, dialer.shown, options);
  }

  /**
   * Starts a server on the local machine; it ends with the `Machine`. Only for Node, Deno and Bun.
   */
  static async local(options: LocalOptions = {}): Promise<Machine> {
    // Not a literal, because bundlers for browsers would include the module.
    const module = "./stdio.js";
    const { StdioDialer, findBinary } = (await import(module)) as typeof import("./stdio.js");
    const command = [options.binary ?? findBinary(), ...(options.args ?? []), "--listen", "stdio"];
    return Machine.#open(new StdioDialer(command), "", options);
  }

  /** Continues a process from the state that `Process.save` returned, here or elsewhere. */
  static async resume(
    state: ProcessState,
    options: ConnectOptions = {},
  ): Promise<Process & { machine: Machine }> {
    const dialer = new WebSocketDialer(state.url, options.token);
    const connection = Machine.#prepare(dialer, options, state.sessionId);
    const machine = new Machine(connection, dialer.shown);
    const process = machine.#attach(state);
    await connection.open();
    return Object.assign(process, { machine });
  }

  get sessionId(): string {
    return this.#connection.sessionId!;
  }

  /** Continues a process of this session from the state that `Process.save` returned. */
  attach(state: ProcessState): Process {
    if (state.sessionId !== this.sessionId) {
      throw new RangeError(
        `process "${state.processId}" belongs to session ${state.sessionId}, and this machine is ` +
          `session ${this.sessionId}; use Machine.resume(state)`,
      );
    }
    return this.#attach(state);
  }

  /** Runs a command to its end: a line for /bin/sh, or a program with its arguments. */
  async exec(
    command: string | readonly string[],
    options: ExecOptions & { encoding: "buffer" },
  ): Promise<ExecResult<Uint8Array>>;
  async exec(
    command: string | readonly string[],
    options?: ExecOptions,
  ): Promise<ExecResult<string>>;
  async exec(
    command: string | readonly string[],
    options: ExecOptions = {},
  ): Promise<ExecResult<string | Uint8Array>> {
    const argv = typeof command === "string" ? ["/bin/sh", "-c", command] : command;
    const stdin = options.input === undefined ? "ignore" : "pipe";
    const process = await this.spawn(argv, { ...options, stdin });
    return collect(process, options);
  }

  /** Starts a program. */
  async spawn(argv: readonly string[], options: SpawnOptions = {}): Promise<Process> {
    if (argv.length === 0) throw new RangeError("argv is empty; name a program");
    const { signal } = options;
    signal?.throwIfAborted();
    const gaps = options.onFull === "discard" ? "declared" : "fatal";
    const sync = new ProcessSync(`ts-${uniqueId()}`, { gaps });
    const params = await this.#startParams(sync.processId, argv, options);
    const process = new Process(this.#connection, sync, this.#url);
    await this.#connection.start(sync, params, signal);
    if (signal) {
      const terminate = () => void process.terminate().catch(() => {});
      if (signal.aborted) terminate();
      else signal.addEventListener("abort", terminate, { once: true });
      const forget = () => signal.removeEventListener("abort", terminate);
      process.exited.then(forget, forget);
    }
    return process;
  }

  /** The shell, working directory and temporary directory of the machine. */
  async info(): Promise<{ shell: string; cwd: string; tempDir: string }> {
    const { shell, cwd, tempDir } = await this.#environment();
    return { shell: shell.path, cwd: fromUri(cwd), tempDir: fromUri(tempDir) };
  }

  /** Calls any method of the protocol; see docs/protocol.md. */
  call<M extends Method>(method: M, ...[params]: OptionalIfEmpty<Params<M>>): Promise<Result<M>> {
    return this.#connection.call(method, params ?? ({} as Params<M>));
  }

  /** Same as `fs.watch`: the other clients have `watch`, `search` and `glob` here. */
  watch(path: PathLike, options?: WatchOptions): Promise<Watch> {
    return this.fs.watch(path, options);
  }

  /** Same as `fs.search`. */
  search(pattern: string, path: PathLike, options?: SearchOptions): Search {
    return this.fs.search(pattern, path, options);
  }

  /** Same as `fs.glob`. */
  glob(patterns: string | string[], path: PathLike, options?: GlobOptions): Promise<string[]> {
    return this.fs.glob(patterns, path, options);
  }

  /** Makes an HTTP request from the machine. */
  fetch(url: string | URL, init?: Parameters<Http["fetch"]>[1]): Promise<Response> {
    return this.http.fetch(url, init);
  }

  /**
   * Ends the session, its processes and the connection. While the connection is lost, the server
   * keeps the session and its processes for `detachedTtl`.
   */
  close(): Promise<void> {
    return this.#connection.close(true);
  }

  /**
   * Ends the connection only. The server keeps the session and its processes for `detachedTtl`; the
   * server of `Machine.local()` ends.
   */
  disconnect(): Promise<void> {
    return this.#connection.close(false);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  static async #open(dialer: Dialer, url: string, options: ConnectOptions): Promise<Machine> {
    const connection = Machine.#prepare(dialer, options, null);
    await connection.open();
    return new Machine(connection, url);
  }

  static #prepare(dialer: Dialer, options: ConnectOptions, resume: string | null): Connection {
    const {
      clientName = "exec-server (TypeScript)",
      connectTimeout = 10_000,
      detachedTtl,
      recovery,
      onState,
    } = options;
    return new Connection(
      dialer,
      { clientName, connectTimeout, detachedTtl, recovery, onState },
      resume,
    );
  }

  #attach(state: ProcessState): Process {
    if (state.version !== 1)
      throw new TypeError(
        `the saved state has version ${state.version}, but this client reads only version 1`,
      );
    const { processId, after, gaps, consumed, exit, closed } = state;
    const sync = new ProcessSync(processId, { gaps, after, attached: true });
    sync.log.exit = exit;
    sync.log.closed = closed;
    const process = new Process(this.#connection, sync, this.#url, consumed);
    if (!closed) this.#connection.track(sync);
    return process;
  }

  /** The paths and the shell of a machine do not change, so they are requested once. */
  #environment(): Promise<EnvironmentInfo> {
    if (this.#info === undefined) {
      this.#info = this.#connection.call("environment/info", {});
      this.#info.catch(() => (this.#info = undefined));
    }
    return this.#info;
  }

  async #startParams(
    processId: string,
    argv: readonly string[],
    options: SpawnOptions,
  ): Promise<StartParams> {
    const { tty, timeout, limits, network, onFull, killOnExit, arg0 } = options;
    return {
      processId,
      argv: [...argv],
      cwd: options.cwd === undefined ? (await this.#environment()).cwd : toUri(options.cwd),
      env: options.env ?? {},
      envPolicy: { inherit: options.inheritEnv ?? "all" },
      tty: Boolean(tty),
      size: typeof tty === "object" ? tty : undefined,
      pipeStdin: !tty && options.stdin !== "ignore",
      sandbox: wireSandbox(options.sandbox),
      timeoutMs: timeout,
      limits,
      network,
      onFull,
      killOnExit,
      arg0,
    };
  }
}
