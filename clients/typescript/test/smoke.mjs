// The features that must work in every runtime: commands, files, streams, a watch and a search. The
// caller cuts the connection at the first write. Only web APIs are used, for browsers.
import { Machine } from "../dist/index.js";

async function text(stream) {
  const decoder = new TextDecoder();
  let all = "";
  for await (const chunk of stream) all += decoder.decode(chunk, { stream: true });
  return all;
}

/** Returns the results, which must be the same in each runtime. */
export async function smoke(url, token) {
  const states = [];
  const machine = await Machine.connect(url, { token, onState: ({ type }) => states.push(type) });

  const cat = await machine.spawn(["cat"]);
  const writer = cat.stdin.getWriter();
  await writer.write("one\n");
  await writer.write("two\n");
  await writer.close();
  const echoed = await text(cat.stdout);
  const { exitCode: catCode } = await cat.exited;

  const { exitCode, stdout, stderr } = await machine.exec("echo out; echo err >&2; exit 3");
  const numbers = await machine.spawn(["seq", "1", "100000"], { stdin: "ignore" });
  const lines = (await text(numbers.stdout)).split("\n").length - 1;

  const directory = (await machine.exec(["mktemp", "-d"])).stdout.trim();
  const watch = await machine.watch(directory);
  await machine.fs.writeFile(`${directory}/ä b`, new Uint8Array([0, 255, 10]));
  const { changes } = await watch.next();
  await watch.close();
  const bytes = [...(await machine.fs.readFile(`${directory}/ä b`))];
  const source = new Blob(["needle\n"]).stream();
  await source.pipeTo(machine.fs.writeStream(`${directory}/piped`));
  const matches = await machine.search("needle", directory).toArray();
  const names = await machine.fs.readdir(directory);
  await machine.fs.rm(directory, { recursive: true });

  await machine.close();
  return {
    echoed,
    catCode,
    exitCode,
    stdout,
    stderr,
    lines,
    bytes,
    names,
    watched: changes[0].path.slice(directory.length),
    found: matches.map(({ path, lineNumber }) => [path.slice(directory.length), lineNumber]),
    reconnected: states.filter((state) => state === "connected").length > 1,
  };
}

export const EXPECTED = {
  echoed: "one\ntwo\n",
  catCode: 0,
  exitCode: 3,
  stdout: "out\n",
  stderr: "err\n",
  lines: 100000,
  bytes: [0, 255, 10],
  names: ["piped", "ä b"],
  watched: "/ä b",
  found: [["/piped", 1]],
  reconnected: true,
};
