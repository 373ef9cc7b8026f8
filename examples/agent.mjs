// An agent whose network fails while it works. It loses no output and does nothing twice.
//
//   npm install exec-server
//   npm exec -c "node agent.mjs"         # starts a server
//   node agent.mjs 127.0.0.1:7777        # or uses one
import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect, createServer } from "node:net";
import { Machine } from "exec-server";

const PROJECT = {
  "answer.sh": "echo 41\n",
  "check.sh": `
for number in 1 2 3 4 5; do
  sleep 0.2
  echo "check $number passed"
done
answer=$(sh answer.sh)
[ "$answer" = 42 ] || { echo "the answer is $answer" >&2; exit 1; }
echo "all checks passed"
`,
};

/** Stands in for a language model: the next command, or null when the task is done. */
function model(last) {
  if (last === null) return "sh check.sh";
  if (last.stderr.includes("the answer is 41")) return "sed -i s/41/42/ answer.sh && sh check.sh";
  return null;
}

async function agent(machine, network) {
  const workspace = (await machine.exec(["mktemp", "-d"])).stdout.trim();
  for (const [name, content] of Object.entries(PROJECT))
    await machine.fs.writeFile(`${workspace}/${name}`, content);
  const decoder = new TextDecoder();
  const onStdout = (chunk) => {
    const text = decoder.decode(chunk, { stream: true });
    process.stdout.write(text);
    if (text.includes("check 2 passed")) network.cut();
  };
  let result = null;
  for (let command = model(result); command !== null; command = model(result)) {
    console.log(`$ ${command}`);
    result = await machine.exec(command, {
      cwd: workspace,
      sandbox: "workspace-write",
      timeout: 60_000,
      onStdout,
    });
    console.log(`exit code ${result.exitCode}`);
  }
  await machine.fs.rm(workspace, { recursive: true });
}

/** Passes bytes on between the agent and its server. `cut` ends the connection. */
async function startNetwork(address) {
  const [host, port] = address.split(":");
  let links = [];
  const network = {
    connections: 0,
    cut() {
      console.log("--- the connection is cut");
      for (const link of links) link.destroy();
    },
    close: () => listener.close(),
  };
  const listener = createServer((agent) => {
    const server = connect(Number(port), host);
    links = [agent, server];
    network.connections += 1;
    if (network.connections > 1)
      console.log(`--- connection ${network.connections}: the agent is back`);
    for (const [from, to] of [links, links.toReversed()]) {
      from.pipe(to);
      from.on("error", () => {}).on("close", () => to.destroy());
    }
  }).listen(0, "127.0.0.1");
  await once(listener, "listening");
  network.url = `ws://127.0.0.1:${listener.address().port}`;
  return network;
}

async function startServer() {
  const binary = process.env.EXEC_SERVER_BINARY ?? "exec-server";
  const argv = ["--listen", "ws://127.0.0.1:0", "--log", "error"];
  const server = spawn(binary, argv, { stdio: ["ignore", "pipe", "inherit"] });
  const [line] = await once(server.stdout, "data");
  return { address: String(line).trim().replace("ws://", ""), stop: () => server.kill() };
}

const own = process.argv[2] === undefined ? await startServer() : null;
const network = await startNetwork(own?.address ?? process.argv[2]);
try {
  const machine = await Machine.connect(network.url);
  try {
    await agent(machine, network);
    console.log(`done, over ${network.connections} connections`);
  } finally {
    await machine.close();
  }
} finally {
  network.close();
  own?.stop();
}
