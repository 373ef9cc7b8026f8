// The types that a TypeScript program sees, even without those of the DOM. Compiled, not run.
import { Machine, ServerError, type Sandbox, type wire } from "../dist/index.js";

export async function use(machine: Machine): Promise<void> {
  await Machine.connect("ws://host", {
    token: async () => "token",
    onState: ({ type }) => type === "failed",
  });
  const sandbox: Sandbox = { type: "workspace-write", writableRoots: ["/x"], network: true };
  const text: string = (await machine.exec("true", { sandbox, limits: { memoryBytes: 1 } })).stdout;
  const bytes: Uint8Array = (await machine.exec(["true"], { encoding: "buffer" })).stdout;
  const process = await machine.spawn(["true"], {
    tty: { rows: 1, cols: 2 },
    signal: AbortSignal.timeout(1),
  });
  for await (const event of process.events())
    if (event.type === "exited") event.exitCode satisfies number;
  const list: wire.ListResponse = await machine.call("process/list");
  const names: string[] = await machine.fs.readdir("/");
  (await machine.fs.readdir("/", { withFileTypes: true }))[0]?.isFile();
  const response: Response = await machine.fetch(new URL("http://host"), {
    headers: { accept: "*/*" },
  });
  console.log(text, bytes, list, names, response, new ServerError({}).kind);

  // @ts-expect-error: a request needs its params
  await machine.call("process/wait");
  // @ts-expect-error: there is no such limit
  await machine.exec("true", { limits: { nonsense: 1 } });
  // @ts-expect-error: the server cannot do this for a directory
  await machine.fs.readdir("/", { followSymlinks: false });
}
