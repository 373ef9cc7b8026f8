// Servers, and a proxy that cuts connections, for the end-to-end tests.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { WebSocket, WebSocketServer } from "ws";
import { Machine } from "../dist/index.js";

export const binary = process.env.EXEC_SERVER_BINARY;
/** For `test(name, needsServer, …)`. */
export const needsServer = { skip: binary ? false : "SKIPPED: EXEC_SERVER_BINARY is not set" };

/** A server on a free port, ended after the test. */
export async function startServer(context, ...args) {
  const child = spawn(binary, ["--listen", "ws://127.0.0.1:0", ...args], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, EXEC_SERVER_LOG: "error", RUST_LOG: "error" },
  });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  context.after(async () => {
    child.kill("SIGKILL");
    await ended;
  });
  for await (const line of createInterface({ input: child.stdout })) {
    const url = line.match(/ws:\/\/\S+/)?.[0];
    if (url) return { url, child };
  }
  throw new Error(`${binary} exited with ${await ended} before it printed its URL`);
}

/** Starts a server with these arguments and connects to it. Both end after the test. */
export async function connect(context, ...args) {
  const machine = await Machine.connect((await startServer(context, ...args)).url);
  context.after(() => machine.close());
  return machine;
}

export function temporaryDirectory(context) {
  const path = mkdtempSync(join(tmpdir(), "exec-server-ts-"));
  context.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/**
 * Passes messages on, and asks `fate(count, direction, text)` about each: "pass", "drop" (the
 * connection ends and the message is lost) or "deliver" (it is passed on, then the connection
 * ends).
 */
export async function startProxy(context, target, fate) {
  const server = new WebSocketServer({
    port: 0,
    host: "127.0.0.1",
    maxPayload: 64 << 20,
    handleProtocols: () => "exec-server.v1",
  });
  await new Promise((resolve) => server.once("listening", resolve));
  context.after(() => {
    for (const socket of server.clients) socket.terminate();
    server.close();
  });
  const proxy = { url: `ws://127.0.0.1:${server.address().port}`, count: 0, connections: 0 };
  server.on("connection", (down, { headers }) => {
    proxy.connections += 1;
    const { authorization } = headers;
    const protocols = headers["sec-websocket-protocol"].split(/, */);
    const up = new WebSocket(target, protocols, {
      maxPayload: 64 << 20,
      headers: authorization ? { authorization } : {},
    });
    const early = [];
    let cut = false;
    const end = () => {
      cut = true;
      up.terminate();
      down.terminate();
    };
    const pass = (direction, to) => (data) => {
      if (cut) return;
      const text = data.toString();
      const verdict = fate(++proxy.count, direction, text);
      if (verdict === "drop") return end();
      if (to.readyState === WebSocket.CONNECTING) early.push(text);
      else if (verdict === "deliver") to.send(text, () => end());
      else to.send(text);
    };
    up.on("open", () => early.splice(0).forEach((text) => up.send(text)));
    down.on("message", pass("up", up));
    up.on("message", pass("down", down));
    for (const socket of [up, down]) {
      socket.on("error", () => {});
      socket.on("close", end);
    }
  });
  return proxy;
}

/** Resolves when `look` returns something true. */
export async function eventually(look) {
  for (;;) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Skips a test where the server cannot enforce a sandbox; returns whether it did. */
export async function skipWithoutSandbox(context, machine) {
  try {
    await machine.exec("true", { cwd: "/", sandbox: "workspace-write" });
    return false;
  } catch (error) {
    if (error.kind !== "sandboxUnavailable") throw error;
    context.skip(`SKIPPED: ${error.message}`);
    return true;
  }
}

/** Reads exactly this text. */
export async function read(reader, expected) {
  let received = "";
  while (received.length < expected.length) received += Buffer.from((await reader.read()).value);
  assert.equal(received, expected);
}

export async function text(stream) {
  return new Response(stream).text();
}
