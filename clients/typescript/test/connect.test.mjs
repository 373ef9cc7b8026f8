// Connections to a machine: local, over a Unix socket, with a token; close, disconnect and fetch.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { getEventListeners } from "node:events";
import { createServer } from "node:http";
import { join } from "node:path";
import test from "node:test";
import { promisify } from "node:util";
import { ClosedError, ConnectError, Machine, SessionLostError } from "../dist/index.js";
import {
  binary,
  connect,
  eventually,
  needsServer,
  startServer,
  temporaryDirectory,
} from "./support.mjs";

const TOKEN = "0123456789abcdef0123456789abcdef";

test("a local server is reached over stdio", needsServer, async () => {
  const machine = await Machine.local({ binary });
  assert.equal((await machine.exec("echo out")).stdout, "out\n");
  const process = await machine.spawn(["cat"]);
  assert.throws(() => process.save(), /cannot be saved/);
  // `await using` would call this, but Node 20 cannot parse it.
  await machine[Symbol.asyncDispose]();
});

test("a local server that cannot start says why", async () => {
  await assert.rejects(Machine.local({ binary: "/no/such/binary" }), (error) => {
    return error instanceof ConnectError && error.permanent && /ENOENT/.test(error.message);
  });
  await assert.rejects(Machine.local({ binary: "false" }), /exit code 1/);
});

test("a program ends although its local server never answers", async (context) => {
  const directory = temporaryDirectory(context);
  const binary = join(directory, "silent");
  // Its child keeps the pipes open for as long as the program runs.
  const script = "#!/bin/sh\nwhile kill -0 $PPID; do sleep 0.05; done & wait\n";
  writeFileSync(binary, script, { mode: 0o755 });
  const program = `
    import { Machine } from ${JSON.stringify(new URL("../dist/index.js", import.meta.url).href)};
    const options = { binary: ${JSON.stringify(binary)}, connectTimeout: 100 };
    await Machine.local(options).catch(({ message }) => console.log(message));`;
  const argv = ["--input-type=module", "-e", program];
  const { stdout } = await promisify(execFile)(process.execPath, argv, { timeout: 30_000 });
  assert.match(stdout, /the server did not answer within 0\.1 s/);
});

test("a server is reached over a Unix socket", needsServer, async (context) => {
  const path = join(temporaryDirectory(context), "a socket: 1%");
  await startServer(context, "--listen", `unix://${path}`);
  await eventually(() => existsSync(path));
  const url = new URL(`unix://${path.replaceAll("%", "%25")}`);
  const machine = await Machine.connect(url);
  const cat = await machine.spawn(["cat"], { cwd: "/" });
  await machine.disconnect();
  const resumed = await Machine.resume(JSON.parse(JSON.stringify(cat.save())));
  await resumed.closeStdin();
  assert.equal((await resumed.exited).exitCode, 0);
  await resumed.machine.close();
  await assert.rejects(Machine.connect("unix:///no/such/socket"), /ENOENT/);
  await assert.rejects(Machine.connect("unix://relative"), TypeError);
});

test("only a valid token is accepted", needsServer, async (context) => {
  const file = join(temporaryDirectory(context), "token");
  writeFileSync(file, TOKEN, { mode: 0o600 });
  const { url } = await startServer(
    context,
    "--ws-auth",
    "capability-token",
    "--ws-token-file",
    file,
  );
  await assert.rejects(Machine.connect(url), ConnectError);
  await assert.rejects(Machine.connect(url, { token: "wrong" }), ConnectError);
  const failing = () => Promise.reject(new Error("no token today"));
  await assert.rejects(Machine.connect(url, { token: failing }), /no token today/);
  for (const token of [TOKEN, () => TOKEN, async () => TOKEN])
    await (await Machine.connect(url, { token })).close();
  const inUrl = await Machine.connect(`${url}?token=${TOKEN}&key=secret`);
  const process = await inUrl.spawn(["sleep", "1000"]);
  assert.equal(process.save().url, `${url}/`);
  assert.doesNotMatch(JSON.stringify(process.save()), new RegExp(`${TOKEN}|secret`));
  await inUrl.close();
});

test("an unreachable server or an invalid URL fails at once", async () => {
  await assert.rejects(Machine.connect("ws://127.0.0.1:1"), ConnectError);
  await assert.rejects(Machine.connect("http://127.0.0.1:1"), TypeError);
  await assert.rejects(Machine.connect("nonsense"), TypeError);
  await assert.rejects(Machine.connect("//user:secret#x@host"), { message: /^"…" is not a URL;/ });
  await assert.rejects(Machine.connect("//user:secret@host?token=secret"), ({ message }) => {
    assert.match(message, /^"host" is not a URL; expected ws:/);
    return true;
  });
});

test("a closed machine refuses calls, and its session is gone", needsServer, async (context) => {
  const { url } = await startServer(context);
  const states = [];
  const machine = await Machine.connect(url, { onState: ({ type }) => states.push(type) });
  const process = await machine.spawn(["sleep", "1000"]);
  const state = process.save();
  await machine.close();
  await machine.close();
  await assert.rejects(process.exited, ClosedError);
  await assert.rejects(machine.exec("true"), ClosedError);
  await assert.rejects(Machine.resume(state), SessionLostError);
  assert.deepEqual(states, ["connected", "closed"]);
});

test("a session outlives a disconnect", needsServer, async (context) => {
  const { url } = await startServer(context);
  const machine = await Machine.connect(url, { detachedTtl: 60_000 });
  const [cat, other] = [await machine.spawn(["cat"]), await machine.spawn(["cat"])];
  const { sessionId } = machine;
  await machine.disconnect();
  const resumed = await Machine.resume(cat.save());
  assert.equal(resumed.machine.sessionId, sessionId);
  const attached = resumed.machine.attach(other.save());
  for (const process of [resumed, attached]) {
    await process.closeStdin();
    assert.equal((await process.exited).exitCode, 0);
  }
  const foreign = { ...other.save(), sessionId: "another" };
  assert.throws(() => resumed.machine.attach(foreign), RangeError);
  await resumed.machine.close();
});

test("a machine reports its shell and directories", needsServer, async (context) => {
  const machine = await connect(context);
  const { shell, cwd, tempDir } = await machine.info();
  assert.ok([shell, cwd, tempDir].every((path) => path.startsWith("/")));
  assert.equal((await machine.call("environment/status")).status, "ready");
  await assert.rejects(machine.call("no/such"), { code: -32601 });
});

test("fetch makes requests from the machine", needsServer, async (context) => {
  const site = createServer(async (request, response) => {
    if (request.url === "/slow") return response.write("begun");
    const body = (await request.toArray()).join("");
    response
      .setHeader("x-answer", "42")
      .end(`${request.method} ${request.headers["x-question"]} ${body}`);
  });
  await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
  context.after(() => (site.close(), site.closeAllConnections()));
  const origin = `http://127.0.0.1:${site.address().port}`;
  const machine = await connect(context);
  const large = "x".repeat(1 << 20);
  const init = { method: "post", headers: { "x-question": "?" }, body: large };
  const response = await machine.fetch(`${origin}/`, init);
  assert.deepEqual([response.status, response.headers.get("x-answer")], [200, "42"]);
  assert.equal(await response.text(), `POST ? ${large}`);
  assert.equal((await machine.http.fetch(`${origin}/`, { method: "HEAD" })).body, null);

  const { signal } = new AbortController();
  await assert.rejects(machine.fetch(origin, { signal, headers: { "not a name": "" } }), TypeError);
  assert.equal(getEventListeners(signal, "abort").length, 0);
  const abort = new AbortController();
  const reader = (await machine.fetch(`${origin}/slow`, { signal: abort.signal })).body.getReader();
  assert.equal(Buffer.from((await reader.read()).value).toString(), "begun");
  abort.abort();
  await assert.rejects(reader.read(), { name: "AbortError" });
  await assert.rejects(machine.fetch("http://127.0.0.1:1/"), { kind: "httpFailed" });
});
