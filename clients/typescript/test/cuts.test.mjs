// A lost connection at any message loses nothing and duplicates nothing.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import test from "node:test";
import { DisconnectedError, Machine, SessionLostError } from "../dist/index.js";
import {
  eventually,
  needsServer,
  startProxy,
  startServer,
  temporaryDirectory,
  text,
} from "./support.mjs";

const LINES = ["one\n", "two\n", "three\n"];

/** Writes lines to `cat` and reads them back. Returns the outcome. */
async function converse(url) {
  const machine = await Machine.connect(url);
  try {
    const cat = await machine.spawn(["cat"], { cwd: "/" });
    const reader = cat.stdout.getReader();
    let received = "";
    for (const line of LINES) {
      await cat.write(line);
      const wanted = received.length + line.length;
      while (received.length < wanted) received += Buffer.from((await reader.read()).value);
    }
    await cat.closeStdin();
    for (let next = await reader.read(); !next.done; next = await reader.read())
      received += Buffer.from(next.value);
    return { received, exitCode: (await cat.exited).exitCode };
  } catch (error) {
    if (!(error instanceof DisconnectedError)) throw error;
    assert.equal(error.method, "process/start");
    // A process that did start is ended.
    await eventually(async () => {
      const { processes } = await machine.call("process/list");
      return processes.every(({ running }) => !running);
    });
    return "start interrupted";
  } finally {
    await machine.close();
  }
}

for (const fate of ["drop", "deliver"]) {
  test(`a cut at any message loses and repeats nothing (${fate})`, needsServer, async (context) => {
    const server = await startServer(context);
    let interrupted = 0;
    // The first two messages are those of the first handshake, which is not repeated. A start is
    // interrupted by a cut at the message before it, at its request or at its response.
    for (let at = 3; ; at++) {
      let cut = false;
      let method = "";
      const proxy = await startProxy(context, server.url, (count, direction, message) => {
        if (count !== at || message.includes("session/close")) return "pass";
        cut = true;
        method = `${direction} ${message}`;
        return fate;
      });
      const result = await converse(proxy.url);
      if (result === "start interrupted") interrupted += 1;
      else
        assert.deepEqual(
          result,
          { received: LINES.join(""), exitCode: 0 },
          `cut at ${at}: ${method}`,
        );
      if (!cut) break;
    }
    assert.ok(interrupted >= 1 && interrupted <= 3, `${interrupted} starts were interrupted`);
  });
}

test("output survives a cut every few messages", needsServer, async (context) => {
  const server = await startServer(context);
  let down = 0;
  const proxy = await startProxy(context, server.url, (_, direction) =>
    direction === "down" && ++down % 9 === 0 ? "drop" : "pass",
  );
  const machine = await Machine.connect(proxy.url);
  const process = await machine.spawn(["seq", "1", "1000000"], { stdin: "ignore", cwd: "/" });
  const hash = createHash("sha256");
  for await (const chunk of process.stdout) hash.update(chunk);
  const expected = createHash("sha256");
  for (let number = 1; number <= 1000000; number++) expected.update(`${number}\n`);
  assert.equal(hash.digest("hex"), expected.digest("hex"));
  assert.equal((await process.exited).exitCode, 0);
  assert.ok(proxy.connections > 2, `${proxy.connections} connections`);
  await machine.disconnect();
});

/**
 * A machine whose connection is lost at `environment/status`, and then at each of these messages
 * once.
 */
async function startLosing(context, ...messages) {
  const server = await startServer(context);
  const left = ["environment/status", ...messages];
  const proxy = await startProxy(context, server.url, (_, direction, message) => {
    if (direction !== "up" || left.length === 0 || !message.includes(`"${left[0]}"`)) return "pass";
    left.shift();
    return "drop";
  });
  let tell;
  const recovering = new Promise((resolve) => (tell = resolve));
  const machine = await Machine.connect(proxy.url, {
    onState: ({ type }) => type === "recovering" && tell(),
  });
  context.after(() => machine.close());
  return { machine, recovering, status: () => machine.call("environment/status") };
}

test("operations begun during a recovery succeed after it", needsServer, async (context) => {
  const { machine, recovering, status } = await startLosing(context, "initialize");
  const directory = temporaryDirectory(context);
  await machine.fs.writeFile(`${directory}/x`, "needle");
  const answered = status();
  await recovering;
  const [watch, matches, output] = await Promise.all([
    machine.watch(directory),
    machine.search("needle", directory).toArray(),
    machine.spawn(["echo", "hello"], { cwd: "/" }).then((process) => text(process.stdout)),
    answered,
  ]);
  assert.deepEqual([matches.length, output], [1, "hello\n"]);
  await machine.fs.writeFile(`${directory}/y`, "");
  assert.equal((await watch.next()).changes[0].path, `${directory}/y`);
});

test("a watch is established again, even if that is cut too", needsServer, async (context) => {
  const { machine, status } = await startLosing(context, "fs/watch", "fs/watch");
  const directory = temporaryDirectory(context);
  const watch = await machine.watch(directory);
  await status();
  assert.deepEqual(await watch.next(), { changes: [], rescan: true });
  await machine.fs.writeFile(`${directory}/x`, "");
  assert.equal((await watch.next()).changes[0].path, `${directory}/x`);
});

test("an upload fails with its connection", needsServer, async (context) => {
  const { machine, status } = await startLosing(context);
  const directory = temporaryDirectory(context);
  const writer = machine.fs.writeStream(`${directory}/x`).getWriter();
  await writer.write("begun");
  await status();
  await assert.rejects(writer.write("more"), (error) => {
    assert.ok(error instanceof DisconnectedError);
    assert.match(error.message, /the connection was lost, and the handle of the file with it/);
    return true;
  });
  assert.equal(await machine.fs.exists(`${directory}/x`), false);
});

test("a write whose response is lost takes effect once", needsServer, async (context) => {
  const server = await startServer(context);
  let writes = 0;
  const proxy = await startProxy(context, server.url, (_, direction, message) => {
    if (direction === "up" && message.includes('"process/write"'))
      return ++writes === 1 ? "deliver" : "pass";
    return "pass";
  });
  const machine = await Machine.connect(proxy.url);
  const { stdout } = await machine.exec(["cat"], { input: "once" });
  assert.equal(stdout, "once");
  assert.equal(writes, 2);
  await machine.close();
});

test(
  "a session that the server has lost ends everything with SessionLostError",
  needsServer,
  async (context) => {
    const server = await startServer(context);
    const other = await startServer(context);
    let target = server.url;
    // After the cut, another server answers at the same address.
    const { createServer, connect } = await import("node:net");
    const sockets = new Set();
    const relay = createServer((down) => {
      const up = connect(Number(new URL(target).port), "127.0.0.1");
      for (const socket of [down, up]) {
        sockets.add(socket);
        socket.on("error", () => {});
        socket.on("close", () => (down.destroy(), up.destroy()));
      }
      down.pipe(up).pipe(down);
    });
    await new Promise((resolve) => relay.listen(0, "127.0.0.1", resolve));
    context.after(() => relay.close());
    const machine = await Machine.connect(`ws://127.0.0.1:${relay.address().port}`);
    const process = await machine.spawn(["sleep", "1000"]);
    target = other.url;
    for (const socket of sockets) socket.destroy();
    await assert.rejects(process.exited, SessionLostError);
    await assert.rejects(text(process.stdout), SessionLostError);
    await assert.rejects(machine.exec("true"), SessionLostError);
  },
);

test("the recovery is given up after its deadline", needsServer, async (context) => {
  const server = await startServer(context);
  const states = [];
  const machine = await Machine.connect(server.url, {
    recovery: { deadline: 300 },
    onState: ({ type }) => states.push(type),
  });
  server.child.kill("SIGKILL");
  await assert.rejects(machine.call("process/wait", { processId: "none" }), SessionLostError);
  assert.equal(states.at(-1), "failed");
  assert.ok(states.includes("recovering"));
});
