// What the package promises, against a real server.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createServer } from "node:http";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { promisify } from "node:util";
import { ConnectError, Machine, ServerError } from "../dist/index.js";
import { binary, needsServer, startServer, temporaryDirectory, text } from "./support.mjs";

test("a local server over stdio", needsServer, async () => {
  const machine = await Machine.local({ binary });
  const result = await machine.exec("echo out; echo err >&2; exit 3");
  assert.deepEqual([result.exitCode, result.stdout, result.stderr], [3, "out\n", "err\n"]);
  await machine.close();
});

test("a token is required, sent and refused", needsServer, async (context) => {
  const file = join(temporaryDirectory(context), "token");
  writeFileSync(file, "0123456789abcdef0123456789abcdef", { mode: 0o600 });
  const { url } = await startServer(context, "--ws-auth", "capability-token", "--ws-token-file", file);
  await assert.rejects(Machine.connect(url), ConnectError);
  await assert.rejects(Machine.connect(url, { token: "wrong" }), /401/);
  const machine = await Machine.connect(url, { token: () => "0123456789abcdef0123456789abcdef" });
  assert.equal((await machine.exec(["echo", "in"])).stdout, "in\n");
  await machine.close();
});

test("an abort terminates the process and its descendants", needsServer, async (context) => {
  const { url } = await startServer(context);
  const machine = await Machine.connect(url);
  const abort = new AbortController();
  const running = machine.exec("echo ready; sleep 1000 & wait", {
    signal: abort.signal,
    onStdout: () => abort.abort(),
  });
  await assert.rejects(running, { name: "AbortError" });
  const { processes } = await machine.call("process/list");
  assert.ok(processes.every(({ running }) => !running));
  await machine.close();
});

test("timeouts and truncated output are told", needsServer, async (context) => {
  const { url } = await startServer(context);
  const machine = await Machine.connect(url);
  assert.equal((await machine.exec("sleep 1000", { timeout: 50 })).limit, "wallTime");
  const long = await machine.exec("seq 100000", { maxOutput: 100 });
  assert.equal(long.truncated, true);
  assert.ok(long.stdout.startsWith("1\n2\n") && long.stdout.endsWith("100000\n"));
  await machine.close();
});

test("a terminal can be resized", needsServer, async (context) => {
  const { url } = await startServer(context);
  const machine = await Machine.connect(url);
  const shell = await machine.spawn(["sh", "-c", "stty -echo; stty size; read x; stty size"], { tty: { rows: 40, cols: 120 } });
  const reader = shell.stdout.getReader();
  assert.match(Buffer.from((await reader.read()).value).toString(), /40 120/);
  await shell.resize({ rows: 50, cols: 132 });
  await shell.write("\n");
  let rest = "";
  for (let next = await reader.read(); !next.done; next = await reader.read()) rest += Buffer.from(next.value);
  assert.match(rest, /50 132/);
  await machine.close();
});

test("files, search and watch", needsServer, async (context) => {
  const { url } = await startServer(context);
  const machine = await Machine.connect(url);
  const { fs } = machine;
  const directory = temporaryDirectory(context);
  const path = (name) => join(directory, name);
  await fs.mkdir(path("a b"), { recursive: true });
  await fs.writeFile(path("a b/x"), "needle\nhay\n");
  assert.equal(await fs.readFile(path("a b/x"), "utf8"), "needle\nhay\n");
  assert.deepEqual(await fs.readdir(directory), ["a b"]);
  await fs.symlink("nowhere", path("dangling"));
  assert.equal((await fs.lstat(path("dangling"))).isSymbolicLink(), true);
  assert.equal((await fs.stat(path("a b"))).isDirectory(), true);
  assert.equal(await fs.readlink(path("dangling")), "nowhere");
  await assert.rejects(fs.stat(path("dangling")), (error) => error instanceof ServerError && error.kind === "notFound");
  await assert.rejects(fs.writeFile(path("a b/x"), "", { flag: "wx" }), { kind: "conflict" });
  assert.deepEqual((await fs.search("needle", directory).toArray()).map((match) => match.lineNumber), [1]);
  assert.deepEqual(await fs.glob("**/x", directory), [path("a b/x")]);
  const watch = await fs.watch(directory, { recursive: true });
  await fs.cp(path("a b/x"), path("y"));
  const { changes } = await watch.next();
  assert.ok(changes.some((change) => change.path === path("y")));
  await watch.close();
  const writer = fs.writeStream(path("big")).getWriter();
  await writer.write(new Uint8Array(3 << 20).fill(7));
  await writer.close();
  assert.equal((await new Response(fs.readStream(path("big"))).arrayBuffer()).byteLength, 3 << 20);
  await fs.rename(path("y"), path("z"));
  await fs.rm(path("z"));
  assert.equal(await fs.exists(path("z")), false);
  await machine.close();
});

test("HTTP from the machine", needsServer, async (context) => {
  const site = createServer((request, response) => response.end(`${request.method} ${"x".repeat(1 << 20)}`));
  await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
  context.after(() => site.close());
  const { url } = await startServer(context);
  const machine = await Machine.connect(url);
  const response = await machine.fetch(`http://127.0.0.1:${site.address().port}/`);
  assert.equal(response.status, 200);
  assert.equal((await response.text()).length, 4 + (1 << 20));
  await machine.close();
});

test("another program continues at the next byte", needsServer, async (context) => {
  const { url } = await startServer(context);
  const program = `
    import { Machine } from ${JSON.stringify(new URL("../dist/index.js", import.meta.url).href)};
    const machine = await Machine.connect(${JSON.stringify(url)});
    const process = await machine.spawn(["sh", "-c", "printf first; read x; printf second"], { cwd: "/" });
    await process.stdout.getReader().read();
    console.log(JSON.stringify(process.save()));
    globalThis.process.exit(0);`;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program]);
  const resumed = await Machine.resume(JSON.parse(stdout));
  await resumed.write("go\n");
  assert.equal(await text(resumed.stdout), "second");
  assert.equal((await resumed.exited).exitCode, 0);
  await resumed.machine.close();
});

test("a reader that does not read loses nothing", needsServer, async (context) => {
  const { url } = await startServer(context);
  const machine = await Machine.connect(url);
  const process = await machine.spawn(["seq", "1", "3000000"], { stdin: "ignore" });
  await process.exited;
  const output = await text(process.stdout);
  assert.equal(output.length, 22888896);
  assert.ok(output.endsWith("\n3000000\n"));
  await machine.close();
});
