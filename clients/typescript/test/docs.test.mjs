// The programs that a reader copies: docs/typescript.md and examples/agent.mjs.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import {
  binary,
  connect,
  needsServer,
  skipWithoutSandbox,
  startServer,
  temporaryDirectory,
} from "./support.mjs";

const repository = fileURLToPath(new URL("../../..", import.meta.url));

/** A directory in which the package is installed. */
function project(context) {
  const directory = temporaryDirectory(context);
  mkdirSync(join(directory, "node_modules"));
  symlinkSync(join(repository, "clients/typescript"), join(directory, "node_modules/exec-server"));
  return directory;
}

async function run(directory, program) {
  const env = { ...process.env, EXEC_SERVER_BINARY: binary };
  return (await promisify(execFile)(process.execPath, [program], { cwd: directory, env })).stdout;
}

const [first, ...blocks] = [
  ...readFileSync(join(repository, "docs/typescript.md"), "utf8").matchAll(/^```js\n(.*?)^```/gms),
].map(([, code]) => code);

test("the first program of the documentation works", needsServer, async (context) => {
  const directory = project(context);
  writeFileSync(join(directory, "first.mjs"), first);
  assert.equal(await run(directory, "first.mjs"), "0 hello\n\n1\n2\n3\n");
});

test("the other blocks of the documentation work in order", needsServer, async (context) => {
  const directory = project(context);
  const { url } = await startServer(context);
  if (await skipWithoutSandbox(context, await connect(context))) return;
  const scopes = blocks.map((code, at) => `console.log("block ${at}");\n{\n${code}}\n`);
  const begin = `import { Machine } from "exec-server";\nconst machine = await Machine.connect("${url}");\n`;
  writeFileSync(join(directory, "blocks.mjs"), begin + scopes.join(""));
  const output = await run(directory, "blocks.mjs");
  for (const expected of [
    / 1 a\n +2 b\n/,
    /24 80\r\n/,
    /^3$/m,
    /^1 \{ .*\/etc\/there/m,
    /done 1$/m,
    /^one\ntwo\n$/m,
  ]) {
    assert.match(output, expected);
  }
});

test("the agent of the examples survives a cut", needsServer, async (context) => {
  if (await skipWithoutSandbox(context, await connect(context))) return;
  const directory = project(context);
  copyFileSync(join(repository, "examples/agent.mjs"), join(directory, "agent.mjs"));
  const lines = (await run(directory, "agent.mjs")).split("\n");
  const count = (line) => lines.filter((other) => other === line).length;
  for (const number of [1, 2, 3, 4, 5]) assert.equal(count(`check ${number} passed`), 2);
  assert.equal(count("all checks passed"), 1);
  assert.equal(count("--- the connection is cut"), 2);
  assert.ok(lines.includes("done, over 3 connections"), lines.join("\n"));
});
