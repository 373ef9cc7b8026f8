#!/usr/bin/env node
// Runs the binary of this platform's package with the same arguments. It does not look on PATH,
// where it would find itself.
import { spawn } from "node:child_process";
import { findPackagedBinary, howToInstall } from "../dist/stdio.js";

function fail(reason) {
  console.error(`exec-server: ${reason}`);
  process.exitCode = 127;
}

const binary = findPackagedBinary();
if (binary) {
  const server = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
  server.on("error", (error) => fail(`cannot start ${binary}: ${error.message}`));
  for (const name of ["SIGTERM", "SIGHUP"]) process.on(name, () => server.kill(name));
  // Ctrl-C reaches the server as well: wait for it to exit.
  process.on("SIGINT", () => {});
  server.on("exit", (code, signal) => {
    if (signal) {
      process.removeAllListeners(signal);
      process.kill(process.pid, signal);
    }
    process.exitCode = code ?? 1;
  });
} else {
  fail(`the binary was not found: ${howToInstall()}`);
}
