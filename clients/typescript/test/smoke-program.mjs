// Runs the smoke test against the server at a URL, and one command with a local server.
import process from "node:process";
import { Machine } from "../dist/index.js";
import { smoke } from "./smoke.mjs";

const [url, token, binary] = process.argv.slice(2);
const result = await smoke(url, token);
const machine = await Machine.local({ binary });
const { stdout } = await machine.exec(["cat"], { input: "local" });
await machine.close();
console.log(JSON.stringify({ ...result, local: stdout }));
