// The TypeScript client that `clients/bench/run` measures.
import { Machine } from "../typescript/dist/index.js";

const [url, task, count] = process.argv.slice(2);
const machine = await Machine.connect(url);
const tasks = {
  async run() {
    await machine.exec("true", { cwd: "/" });
    const start = performance.now();
    for (let at = 0; at < count; at++) await machine.exec("true", { cwd: "/" });
    return performance.now() - start;
  },
  async output() {
    const start = performance.now();
    const head = await machine.spawn(["head", "-c", count, "/dev/zero"], {
      cwd: "/",
      stdin: "ignore",
    });
    let bytes = 0;
    for await (const chunk of head.stdout) bytes += chunk.length;
    if (bytes !== Number(count)) throw new Error(`${bytes} of ${count} bytes arrived`);
    return performance.now() - start;
  },
};
const milliseconds = await tasks[task]();
await machine.close();
console.log(milliseconds / 1000);
