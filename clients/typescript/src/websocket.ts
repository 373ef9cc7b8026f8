/**
 * WebSocket connections: the global `WebSocket`, or the package `ws` for Unix sockets and in
 * runtimes without a global `WebSocket`, such as Node 20.
 */
import type { Socket } from "node:net";
import { ConnectError } from "./errors.js";
import type { Dialer, Transport, TransportEvents } from "./transport.js";

const EXPECTED_URL = "expected ws://HOST:PORT, wss://HOST:PORT or unix:///PATH";
const UNIX = "unix://";
const PROTOCOL = "exec-server.v1";
/** The characters allowed in a subprotocol (RFC 7230, token). */
const SUBPROTOCOL = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/;

/** The advice for a refusal with this HTTP status. */
const REMEDIES: Partial<Record<number, string>> = {
  401: "; check the token",
  403: "; it refuses this user, host name or origin",
};

/**
 * A token, or a function that returns one and is called before each connection, so that the token
 * may be renewed.
 */
export type Token = string | (() => string | Promise<string>);

export class WebSocketDialer implements Dialer {
  readonly canRedial = true;
  /** The URL without the token. */
  readonly #url: string;
  readonly #token: Token | undefined;
  /** The path of the socket, for a `unix:` URL. */
  readonly #socketPath: string | undefined;

  constructor(url: string | URL, token?: Token) {
    this.#token = token;
    this.#socketPath = socketPathOf(url);
    if (this.#socketPath !== undefined) {
      this.#url = UNIX + this.#socketPath;
      return;
    }
    let parsed: URL;
    try {
      parsed = new URL(url);
    } catch {
      throw new TypeError(`"${withoutSecrets(String(url))}" is not a URL; ${EXPECTED_URL}`);
    }
    if (parsed.protocol !== "ws:" && parsed.protocol !== "wss:")
      throw new TypeError(`unsupported URL scheme "${parsed.protocol}"; ${EXPECTED_URL}`);
    this.#token ??= parsed.searchParams.get("token") ?? undefined;
    parsed.searchParams.delete("token");
    this.#url = parsed.href;
  }

  /** The URL for messages and saved states: without user, password and query. */
  get shown(): string {
    if (this.#socketPath !== undefined) return this.#url;
    const { protocol, host, pathname } = new URL(this.#url);
    return `${protocol}//${host}${pathname}`;
  }

  async dial(events: TransportEvents, signal: AbortSignal): Promise<Transport> {
    let token: string | undefined;
    try {
      token = typeof this.#token === "function" ? await this.#token() : this.#token;
    } catch (cause) {
      const reason = (cause as Error).message;
      throw new ConnectError(`cannot get the token for ${this.shown}: ${reason}`, { cause });
    }
    if (signal.aborted)
      throw new ConnectError(`the attempt to connect to ${this.shown} was given up`);
    if (globalThis.WebSocket !== undefined && this.#socketPath === undefined)
      return this.#dialGlobal(token, events, signal);
    return this.#dialNode(token, events, signal);
  }

  /** Headers cannot be set here, so the token is sent as a subprotocol, or in the query. */
  #dialGlobal(
    token: string | undefined,
    events: TransportEvents,
    signal: AbortSignal,
  ): Promise<Transport> {
    const url = new URL(this.#url);
    const protocols = [PROTOCOL];
    if (token !== undefined && SUBPROTOCOL.test(token)) protocols.push(`bearer.${token}`);
    else if (token !== undefined) url.searchParams.set("token", token);
    const socket = new WebSocket(url.href, protocols);
    socket.binaryType = "arraybuffer";
    return new Promise((resolve, reject) => {
      // Until it is open, only the rejection reports a failure.
      let [opened, ended] = [false, false];
      const close = () => {
        ended = true;
        socket.close();
      };
      signal.addEventListener("abort", close, { once: true });
      socket.onopen = () => {
        opened = true;
        resolve({ send: (text) => socket.send(text), close });
      };
      socket.onmessage = ({ data }) => {
        if (!ended)
          events.onMessage(typeof data === "string" ? data : new TextDecoder().decode(data));
      };
      // Every error is followed by a close, which has a code and a reason.
      socket.onclose = ({ code, reason }) => {
        const text = `the connection ended with code ${code}${reason ? ` (${reason})` : ""}`;
        const remedy =
          "check that the server runs, that the token is right and that the origin is allowed";
        reject(new ConnectError(`cannot connect to ${this.shown}: ${text}; ${remedy}`));
        if (opened && !ended) events.onClosed(text);
        ended = true;
      };
    });
  }

  async #dialNode(
    token: string | undefined,
    events: TransportEvents,
    signal: AbortSignal,
  ): Promise<Transport> {
    // Not a literal, or bundlers for browsers would include it.
    const name = "ws";
    const { WebSocket: NodeWebSocket } = (await import(name).catch((cause) => {
      const use =
        this.#socketPath === undefined
          ? "a runtime without a global WebSocket, such as Node 20, needs"
          : "unix: URLs need";
      throw new ConnectError(`${use} the package ws: npm install ws`, {
        permanent: true,
        cause,
      });
    })) as typeof import("ws");
    const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const path = this.#socketPath;
    const url = path === undefined ? this.#url : "ws://localhost/";
    const createConnection = path === undefined ? undefined : await connectTo(path);
    if (signal.aborted)
      throw new ConnectError(`the attempt to connect to ${this.shown} was given up`);
    const socket = new NodeWebSocket(url, [PROTOCOL], {
      headers,
      createConnection,
      perMessageDeflate: false,
      skipUTF8Validation: true,
      allowSynchronousEvents: true,
    });
    return new Promise((resolve, reject) => {
      // Until it is open, only the rejection reports a failure.
      let [opened, ended] = [false, false];
      const close = () => {
        ended = true;
        socket.terminate();
      };
      signal.addEventListener("abort", close, { once: true });
      socket.on("open", () => {
        opened = true;
        resolve({ send: (text) => socket.send(text), close });
      });
      socket.on("message", (data: Buffer) => {
        if (!ended) events.onMessage(data.toString("utf8"));
      });
      socket.on("unexpected-response", (_request, response) => {
        const status = response.statusCode ?? 0;
        const permanent = status === 401 || status === 403;
        const remedy = REMEDIES[status] ?? "";
        reject(
          new ConnectError(`${this.shown} refused the connection with HTTP ${status}${remedy}`, {
            permanent,
          }),
        );
        socket.terminate();
      });
      socket.on("error", (cause) => {
        reject(
          new ConnectError(
            `cannot connect to ${this.shown}: ${cause.message || (cause as { code?: string }).code}`,
            { cause },
          ),
        );
      });
      socket.on("close", (code) => {
        reject(
          new ConnectError(`cannot connect to ${this.shown}: the connection ended with code ${code}`),
        );
        if (opened && !ended) events.onClosed(`the connection ended with code ${code}`);
        ended = true;
      });
    });
  }
}

/** Removes the parts that may hold a secret (user, password, query) from an invalid URL. */
function withoutSecrets(url: string): string {
  // A password may contain "?" or "#".
  if (/[?#].*@/s.test(url)) return "…";
  return url.split(/[?#]/)[0]!.replace(/^([a-z]+:\/\/)?.*@/is, "$1");
}

/** The path of a `unix://` URL: verbatim for a string, as in `--listen`; decoded for a `URL`. */
function socketPathOf(url: string | URL): string | undefined {
  const text = String(url);
  if (!text.startsWith(UNIX)) return undefined;
  const path = text.slice(UNIX.length);
  if (!path.startsWith("/"))
    throw new TypeError(`"${text}" has no absolute socket path; ${EXPECTED_URL}`);
  return typeof url === "string" ? path : decodeURIComponent(path);
}

async function connectTo(path: string): Promise<() => Socket> {
  // Not a literal, or bundlers for browsers would include it.
  const name = "node:net";
  const { connect } = (await import(name)) as typeof import("node:net");
  return () => connect(path);
}
