// machine.exec: runs a command to its end.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { ServerError } from "../dist/index.js";
import {
  connect,
  eventually,
  needsServer,
  skipWithoutSandbox,
  temporaryDirectory,
} from "./support.mjs";

test("exec takes a shell line or a program with its arguments", needsServer, async (context) => {
  const machine = await connect(context);
  const shell = await machine.exec("echo out; echo err >&2; exit 3");
  assert.deepEqual(shell, {
    exitCode: 3,
    stdout: "out\n",
    stderr: "err\n",
    truncated: false,
    signal: null,
    limit: null,
    denied: null,
  });
  assert.equal((await machine.exec(["printf", "%s", "$HOME"])).stdout, "$HOME");
  assert.equal((await machine.exec("kill -9 $$")).signal, 9);
});

test("exec takes a directory, variables and input", needsServer, async (context) => {
  const machine = await connect(context);
  const cwd = temporaryDirectory(context);
  const line = 'pwd; echo "$GREETING"; cat';
  const { stdout } = await machine.exec(line, { cwd, env: { GREETING: "hello" }, input: "typed" });
  assert.equal(stdout, `${cwd}\nhello\ntyped`);
  const { stdout: bytes } = await machine.exec(["cat"], {
    input: new Uint8Array([0, 255]),
    encoding: "buffer",
  });
  assert.deepEqual([...bytes], [0, 255]);
  const { stdout: variables } = await machine.exec(["/usr/bin/env"], {
    inheritEnv: "none",
    env: { ONE: "1" },
  });
  assert.equal(variables, "ONE=1\n");
});

test(
  "exec passes output on as it arrives, and awaits the callback",
  needsServer,
  async (context) => {
    const machine = await connect(context);
    const gate = join(temporaryDirectory(context), "gate");
    const seen = [];
    // The program goes on only after the callback has opened the gate.
    await machine.exec(`echo first; until [ -e ${gate} ]; do sleep 0.01; done; echo second >&2`, {
      onStdout: async (chunk) => {
        seen.push(`stdout ${Buffer.from(chunk)}`);
        await machine.fs.writeFile(gate, "");
        seen.push("awaited");
      },
      onStderr: (chunk) => void seen.push(`stderr ${Buffer.from(chunk)}`),
    });
    assert.deepEqual(seen, ["stdout first\n", "awaited", "stderr second\n"]);
    const failing = machine.exec("echo; sleep 1000", {
      onStdout: () => Promise.reject(new Error("mine")),
    });
    await assert.rejects(failing, /mine/);
  },
);

test("exec reports timeouts, limits and truncated output", needsServer, async (context) => {
  const machine = await connect(context);
  assert.equal((await machine.exec("sleep 1000", { timeout: 50 })).limit, "wallTime");
  const large = await machine.exec("head -c 2000 /dev/zero > file", {
    cwd: temporaryDirectory(context),
    limits: { fileSizeBytes: 1000 },
  });
  assert.equal(large.limit, "fileSize");
  const long = await machine.exec("seq 100000", { maxOutput: 100 });
  assert.equal(long.truncated, true);
  assert.ok(long.stdout.startsWith("1\n2\n") && long.stdout.endsWith("100000\n"));
  assert.ok(long.stdout.length <= 100);
});

test("output that the server dropped makes the result truncated", needsServer, async (context) => {
  const machine = await connect(
    context,
    "--spill-output-bytes-per-process",
    "0",
    "--retained-output-bytes-per-process",
    "65536",
  );
  const ended = async () =>
    (await machine.call("process/list")).processes.every(({ running }) => !running);
  const result = await machine.exec(["head", "-c", "16M", "/dev/zero"], {
    onFull: "discard",
    onStdout: () => eventually(ended),
  });
  assert.ok(result.stdout.length < 16 << 20);
  assert.equal(result.truncated, true);
});

test("the result reports that the sandbox denied access", needsServer, async (context) => {
  const machine = await connect(context);
  if (await skipWithoutSandbox(context, machine)) return;
  const [cwd, other] = [temporaryDirectory(context), temporaryDirectory(context)];
  const sandbox = { type: "workspace-write", excludeSlashTmp: true, excludeTmpdirEnvVar: true };
  const line = `touch inside && touch ${other}/outside`;
  const result = await machine.exec(line, { cwd, sandbox });
  assert.notEqual(result.exitCode, 0);
  assert.ok(result.denied, JSON.stringify(result));
  assert.equal(existsSync(join(cwd, "inside")), true);
  assert.equal(existsSync(join(other, "outside")), false);
  const wider = await machine.exec(line, { cwd, sandbox: { ...sandbox, writableRoots: [other] } });
  assert.deepEqual([wider.exitCode, wider.denied], [0, null]);
  assert.notEqual((await machine.exec("touch inside", { cwd, sandbox: "read-only" })).exitCode, 0);
});

test("an abort terminates the command and its descendants", needsServer, async (context) => {
  const machine = await connect(context);
  const abort = new AbortController();
  const running = machine.exec("echo ready; sleep 1000 & wait", {
    signal: abort.signal,
    onStdout: () => abort.abort(),
  });
  await assert.rejects(running, { name: "AbortError" });
  await assert.rejects(machine.exec("true", { signal: abort.signal }), { name: "AbortError" });
  const { processes } = await machine.call("process/list");
  assert.ok(processes.every(({ running }) => !running));
});

test("a program that cannot be started is an error with a kind", needsServer, async (context) => {
  const machine = await connect(context);
  await assert.rejects(machine.exec(["no-such-program"]), (error) => {
    return (
      error instanceof ServerError &&
      error.kind === "programNotFound" &&
      error.name === "ServerError"
    );
  });
  await assert.rejects(machine.exec("true", { cwd: "relative" }), TypeError);
  await assert.rejects(machine.exec([]), RangeError);
  await assert.rejects(machine.exec("true", { cwd: "/no/such/directory" }), {
    kind: "cwdNotFound",
  });
});
