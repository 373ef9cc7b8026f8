/**
 * WebSocket connections: the global `WebSocket`, or the package `ws` in Node 20, which has none.
 */
import { ConnectError } from "./errors.js";
import type { Dialer, Transport, TransportEvents } from "./transport.js";

const PROTOCOL = "exec-server.v1";
/** What a subprotocol may consist of (RFC 7230, token). */
const SUBPROTOCOL = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/;

/**
 * A token, or a function that is asked for one before each connection, so that it may be renewed.
 */
export type Token = string | (() => string | Promise<string>);

export class WebSocketDialer implements Dialer {
  readonly canRedial = true;
  /** Without the token. */
  readonly url: string;
  readonly #token: Token | undefined;

  constructor(url: string | URL, token?: Token) {
    let parsed: URL;
    try {
      parsed = new URL(url);
    } catch {
      throw new TypeError(`"${url}" is not a URL; expected ws://HOST:PORT or wss://HOST:PORT`);
    }
    if (parsed.protocol !== "ws:" && parsed.protocol !== "wss:") {
      throw new TypeError(
        `cannot connect to a ${parsed.protocol} URL; expected ws://HOST:PORT or wss://HOST:PORT`,
      );
    }
    this.#token = token ?? parsed.searchParams.get("token") ?? undefined;
    parsed.searchParams.delete("token");
    this.url = parsed.href;
  }

  async dial(events: TransportEvents, signal: AbortSignal): Promise<Transport> {
    let token: string | undefined;
    try {
      token = typeof this.#token === "function" ? await this.#token() : this.#token;
    } catch (cause) {
      throw new ConnectError(`the token cannot be read: ${(cause as Error).message}`, { cause });
    }
    if (globalThis.WebSocket !== undefined) return this.#dialGlobal(token, events, signal);
    return this.#dialNode(token, events, signal);
  }

  /** No headers can be set here, so the token is a subprotocol, or part of the query. */
  #dialGlobal(
    token: string | undefined,
    events: TransportEvents,
    signal: AbortSignal,
  ): Promise<Transport> {
    const url = new URL(this.url);
    const protocols = [PROTOCOL];
    if (token !== undefined && SUBPROTOCOL.test(token)) protocols.push(`bearer.${token}`);
    else if (token !== undefined) url.searchParams.set("token", token);
    const socket = new WebSocket(url.href, protocols);
    socket.binaryType = "arraybuffer";
    return new Promise((resolve, reject) => {
      // Until it is open, the rejection alone tells how the attempt ended.
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
      // An error is always followed by the close, which has more to say.
      socket.onclose = ({ code, reason }) => {
        const text = `the connection ended with code ${code}${reason ? ` (${reason})` : ""}`;
        const remedy =
          "check that the server runs, that the token is right and that the origin is allowed";
        reject(new ConnectError(`cannot connect to ${this.url}: ${text}; ${remedy}`));
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
      throw new ConnectError("Node 20 needs the package ws for WebSockets: npm install ws", {
        permanent: true,
        cause,
      });
    })) as typeof import("ws");
    if (signal.aborted) throw new ConnectError("the attempt was given up");
    const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const socket = new NodeWebSocket(this.url, [PROTOCOL], {
      headers,
      perMessageDeflate: false,
      skipUTF8Validation: true,
      allowSynchronousEvents: true,
    });
    return new Promise((resolve, reject) => {
      // Until it is open, the rejection alone tells how the attempt ended.
      let [opened, ended] = [false, false];
      const close = () => {
        ended = true;
        socket.terminate();
      };
      signal.addEventListener("abort", close, { once: true });
      socket.on("open", () => {
        opened = true;
        resolve({
          send: (text) => socket.send(text),
          close: () => ((ended = true), socket.close()),
        });
      });
      socket.on("message", (data: Buffer) => {
        if (!ended) events.onMessage(data.toString("utf8"));
      });
      socket.on("unexpected-response", (_request, response) => {
        const status = response.statusCode ?? 0;
        const permanent = status === 401 || status === 403;
        const remedy = permanent ? "; check the token" : "";
        reject(
          new ConnectError(`${this.url} refused the connection with HTTP ${status}${remedy}`, {
            permanent,
          }),
        );
        socket.terminate();
      });
      socket.on("error", (cause) => {
        reject(
          new ConnectError(
            `cannot connect to ${this.url}: ${cause.message || (cause as { code?: string }).code}`,
            { cause },
          ),
        );
      });
      socket.on("close", (code) => {
        reject(
          new ConnectError(`cannot connect to ${this.url}: the connection ended with code ${code}`),
        );
        if (opened && !ended) events.onClosed(`the connection ended with code ${code}`);
        ended = true;
      });
    });
  }
}
