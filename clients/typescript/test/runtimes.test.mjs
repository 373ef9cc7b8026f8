// The same program in every runtime. scripts/test installs the runtimes below the target directory.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { EXPECTED } from "./smoke.mjs";
import { binary, startProxy, startServer, temporaryDirectory } from "./support.mjs";

const TOKEN = "0123456789abcdef0123456789abcdef";
const packages = join(process.env.JS_RUNTIMES ?? "", "node_modules");
const platform = `${process.platform}-${process.arch}`;
const RUNTIMES = {
  "this Node": [process.execPath],
  "Node 24": [join(packages, `node-${platform}/bin/node`)],
  Deno: [join(packages, `@deno/${platform}-glibc/deno`), "run", "--allow-all", "--no-config"],
  Bun: [join(packages, `@oven/bun-${platform}/bin/bun`), "run"],
};

for (const [name, [runtime, ...args]] of Object.entries(RUNTIMES)) {
  const missing = !binary
    ? "EXEC_SERVER_BINARY is not set"
    : existsSync(runtime)
      ? null
      : `${name} is not installed`;
  test(
    `the client works in ${name}`,
    { skip: missing ? `SKIPPED: ${missing}` : false },
    async (context) => {
      const home = temporaryDirectory(context);
      const tokenFile = join(home, "token");
      writeFileSync(tokenFile, TOKEN, { mode: 0o600 });
      const server = await startServer(
        context,
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        tokenFile,
      );
      let cuts = 0;
      const proxy = await startProxy(context, server.url, (_, direction, message) =>
        direction === "up" && message.includes('"process/write"') && cuts++ === 0
          ? "deliver"
          : "pass",
      );
      const program = fileURLToPath(new URL("smoke-program.mjs", import.meta.url));
      const env = { ...process.env, HOME: home, DENO_DIR: home, DENO_NO_UPDATE_CHECK: "1" };
      const argv = [...args, program, proxy.url, TOKEN, binary];
      const { stdout } = await promisify(execFile)(runtime, argv, { env });
      assert.deepEqual(JSON.parse(stdout), { ...EXPECTED, local: "local" });
    },
  );
}
