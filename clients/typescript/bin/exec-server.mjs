#!/usr/bin/env node
// Runs the binary of this platform's package, with the arguments as they are.
import { spawnSync } from "node:child_process";
import { findBinary } from "../dist/stdio.js";

try {
  const { status, signal, error } = spawnSync(findBinary(), process.argv.slice(2), { stdio: "inherit" });
  if (error) throw error;
  if (signal) process.kill(process.pid, signal);
  process.exitCode = status ?? 1;
} catch (error) {
  console.error(`exec-server: ${error.message}`);
  process.exitCode = 127;
}
