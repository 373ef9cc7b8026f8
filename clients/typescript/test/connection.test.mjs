// The driver over a transport in memory, the closing of failed files, and ids.
import assert from "node:assert/strict";
import test from "node:test";
import { Connection } from "../dist/connection.js";
import { ClosedError, ProtocolError, ServerError, StdinClosedError } from "../dist/errors.js";
import { FileWriter } from "../dist/file-blocks.js";
import { Http } from "../dist/http.js";
import { Process } from "../dist/process.js";
import { ProcessSync } from "../dist/process-sync.js";
import { uniqueId } from "../dist/wire.js";

/** Answers each request for which `answer(connection, method)` returns a result. */
class Server {
  canRedial = true;
  connections = 0;
  requests = [];
  #seen = () => {};

  constructor(answer) {
    this.answer = answer;
  }

  async dial(events) {
    const connection = ++this.connections;
    this.cut = () => events.onClosed("cut");
    this.notify = (method, params) => events.onMessage(JSON.stringify({ method, params }));
    return { send: (text) => this.#take(connection, JSON.parse(text), events), close() {} };
  }

  /** Resolves when this request has arrived on that connection. */
  async request(connection, method) {
    const name = `${connection} ${method}`;
    while (!this.requests.includes(name)) await new Promise((resolve) => (this.#seen = resolve));
  }

  #take(connection, { id, method }, events) {
    this.requests.push(`${connection} ${method}`);
    this.#seen();
    const result = this.answer(connection, method);
    if (result !== undefined)
      queueMicrotask(() => events.onMessage(JSON.stringify({ id, result })));
  }
}

async function connected(answer) {
  const server = new Server(answer);
  const states = [];
  const options = {
    clientName: "test",
    connectTimeout: 10_000,
    recovery: { firstPause: 0 },
    onState: ({ type }) => states.push(type),
  };
  const connection = new Connection(server, options);
  await connection.open();
  return { server, connection, states };
}

const session = { sessionId: "s", positions: {} };

test("a write to a process that the server has forgotten says so", async () => {
  const { connection } = await connected((_number, method) =>
    method === "process/write" ? { status: "unknownProcess" } : session,
  );
  const process = new Process(connection, new ProcessSync("p", { gaps: "fatal" }), "ws://test");
  await assert.rejects(process.write("x"), (error) => {
    assert.ok(error instanceof StdinClosedError);
    assert.equal(error.message, 'cannot write to process "p": the server no longer knows it');
    return true;
  });
  await connection.close();
});

test("a body ends with its connection", async () => {
  const head = { status: 200, headers: [], bodyBase64: "" };
  const { server, connection } = await connected((_, method) =>
    method === "http/request" ? head : session,
  );
  const response = await new Http(connection).fetch("http://box/");
  server.cut();
  await assert.rejects(response.text(), /http\/request: .* before the end of the response body/);
  await connection.close(false);
});

test("a close while initialize is unanswered is reported as closed", async () => {
  const { server, connection, states } = await connected((number, method) =>
    number === 1 && method === "initialize" ? session : undefined,
  );
  server.cut();
  const waiting = connection.call("environment/info", {});
  await server.request(2, "initialize");
  await Promise.all([connection.close(false), assert.rejects(waiting, ClosedError)]);
  assert.deepEqual(states, ["connected", "recovering", "closed"]);
  await assert.rejects(connection.call("environment/info", {}), ClosedError);
});

test("a close while processes catch up is reported as closed", async () => {
  const { server, connection, states } = await connected((_, method) =>
    method === "initialize" ? session : undefined,
  );
  connection.track(new ProcessSync("p", { gaps: "fatal" }));
  server.cut();
  const waiting = connection.call("environment/info", {});
  await server.request(2, "process/read");
  await Promise.all([connection.close(false), assert.rejects(waiting, ClosedError)]);
  assert.deepEqual(states, ["connected", "recovering", "closed"]);
});

test("a notification that cannot be read ends the session, not the program", async () => {
  const { server, connection, states } = await connected(() => session);
  connection.addLease("w", { notified: ({ changes }) => changes.length, lost() {} });
  server.notify("fs/changed", { watchId: "w" });
  assert.deepEqual(states, ["connected", "failed"]);
  await assert.rejects(connection.call("environment/info", {}), ProtocolError);
});

test("a file whose write has failed is closed", async () => {
  const calls = [];
  const writer = new FileWriter(
    {
      async call(method, { discard }) {
        calls.push([method, discard]);
        if (method === "fs/writeBlock") throw new ServerError({ message: "no space" });
        return {};
      },
    },
    { path: "file:///x" },
  );
  await assert.rejects(writer.write(new Uint8Array(1)), /no space/);
  assert.deepEqual(calls.slice(1), [
    ["fs/writeBlock", undefined],
    ["fs/close", true],
  ]);
});

test("a file whose handle is gone at its end was not written", async () => {
  for (const content of ["", "x"]) {
    const writer = new FileWriter({ call: async () => ({}) }, { path: "file:///x" });
    await writer.write(Buffer.from(content));
    const message = /\/x was not written: the connection was lost/;
    await assert.rejects(writer.commit(), { message });
  }
});

test("ids need no randomUUID, which pages on plain http lack", (context) => {
  const { randomUUID } = crypto;
  Object.defineProperty(crypto, "randomUUID", { value: undefined, configurable: true });
  context.after(() => Object.defineProperty(crypto, "randomUUID", { value: randomUUID }));
  const ids = new Set(Array.from({ length: 100 }, uniqueId));
  assert.ok(ids.size === 100 && [...ids].every((id) => /^[0-9a-f]{24}$/.test(id)));
});
