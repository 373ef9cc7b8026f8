/** The adapter of the TypeScript client; clients/conformance/README.md says what it does. */
import { createHash } from "node:crypto";
import { createInterface } from "node:readline";
import {
  DisconnectedError,
  GapError,
  Machine,
  ServerError,
  SessionLostError,
  ClosedError,
  type Process,
  type ProcessEvent,
  type ProcessState,
  type SignalName,
} from "../src/index.js";

interface Command {
  id: number;
  do: string;
  process: string;
  argv: string[];
  tty?: boolean;
  stdin?: boolean;
  onFull?: "block" | "discard";
  data: string;
  count: number;
  signal: SignalName;
  path: string;
  state: { process: ProcessState; unreturned: string };
}

const NEWLINE = 10;

/** The standard output read from a process. */
class Output {
  exitCode: number | null = null;
  readonly gaps: number[] = [];
  readonly #events: AsyncIterator<ProcessEvent, void>;
  /** Received but not returned yet. */
  #pieces: Buffer[] = [];
  #ended = false;
  /** Only one command reads at a time. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(
    readonly handle: Process,
    unreturned = "",
  ) {
    this.#events = handle.events();
    this.#keep(Buffer.from(unreturned, "base64"));
  }

  alone<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => {});
    return result;
  }

  async lines(count: number): Promise<string[]> {
    const lines: string[] = [];
    while (lines.length < count) {
      let end = this.#all().indexOf(NEWLINE) + 1;
      while (end === 0 && (await this.#advance())) end = this.#all().indexOf(NEWLINE) + 1;
      const all = this.#all();
      const line = all.subarray(0, end === 0 ? all.length : end);
      if (line.length === 0) break;
      this.#pieces = [];
      this.#keep(all.subarray(line.length));
      lines.push(line.toString("utf8").replace(/[\r\n]+$/, ""));
    }
    return lines;
  }

  async rest(): Promise<Buffer> {
    while (await this.#advance());
    const all = this.#all();
    this.#pieces = [];
    return all;
  }

  save(): Command["state"] {
    return { process: this.handle.save(), unreturned: this.#all().toString("base64") };
  }

  #all(): Buffer {
    if (this.#pieces.length !== 1) this.#pieces = [Buffer.concat(this.#pieces)];
    return this.#pieces[0]!;
  }

  #keep(piece: Buffer): void {
    if (piece.length > 0) this.#pieces.push(piece);
  }

  async #advance(): Promise<boolean> {
    if (this.#ended) return false;
    const { value, done } = await this.#events.next();
    if (done) this.#ended = true;
    else if (value.type === "output" && value.stream !== "stderr")
      this.#keep(Buffer.from(value.data));
    else if (value.type === "gap") this.gaps.push(value.droppedBytes);
    else if (value.type === "exited") this.exitCode = value.exitCode;
    return !done;
  }
}

const [url] = process.argv.slice(2);
if (url === undefined) throw new Error("missing argument: the URL of a server");
let machine: Promise<Machine> | undefined;
const outputs = new Map<string, Output>();

function connected(): Promise<Machine> {
  return (machine ??= Machine.connect(url!, { clientName: "conformance" }));
}

function outputOf({ process }: Command): Output {
  const output = outputs.get(process);
  if (output === undefined) throw new Error(`there is no process "${process}"`);
  return output;
}

async function start({ argv, tty, stdin, onFull }: Command): Promise<Output> {
  const options = { cwd: "/", tty, stdin: stdin ? "pipe" : "ignore", onFull } as const;
  return new Output(await (await connected()).spawn(argv, options));
}

const commands: Record<string, (command: Command) => Promise<object | void>> = {
  async start(command) {
    outputs.set(command.process, await start(command));
  },
  async write(command) {
    await outputOf(command).handle.write(Buffer.from(command.data, "base64"));
  },
  async closeStdin(command) {
    await outputOf(command).handle.closeStdin();
  },
  async readLines(command) {
    const output = outputOf(command);
    return { lines: await output.alone(() => output.lines(command.count)) };
  },
  async collect(command) {
    const output = outputOf(command);
    const rest = await output.alone(() => output.rest());
    const sha256 = createHash("sha256").update(rest).digest("hex");
    const exitCode = output.exitCode ?? (await output.handle.exited).exitCode;
    return { bytes: rest.length, sha256, exitCode, gaps: output.gaps };
  },
  async wait(command) {
    return { exitCode: (await outputOf(command).handle.exited).exitCode };
  },
  async signal(command) {
    await outputOf(command).handle.kill(command.signal);
  },
  async terminate(command) {
    await outputOf(command).handle.terminate();
  },
  async run({ argv }) {
    const options = { cwd: "/", encoding: "buffer" } as const;
    const { exitCode, stdout } = await (await connected()).exec(argv, options);
    return { exitCode, stdout: Buffer.from(stdout).toString("base64") };
  },
  async readFile({ path }) {
    return { data: Buffer.from(await (await connected()).fs.readFile(path)).toString("base64") };
  },
  async writeFile({ path, data }) {
    await (await connected()).fs.writeFile(path, Buffer.from(data, "base64"));
  },
  async removeFile({ path }) {
    await (await connected()).fs.rm(path);
  },
  async save(command) {
    const output = outputOf(command);
    return { state: await output.alone(async () => output.save()) };
  },
  async resume({ process, state }) {
    const saved = { ...state.process, url: url! };
    outputs.set(
      process,
      new Output(await Machine.resume(saved, { clientName: "conformance" }), state.unreturned),
    );
  },
  async close() {
    await (await connected()).close();
  },
};

function describe(error: unknown): object {
  const kinds = [
    ["disconnected", DisconnectedError],
    ["sessionLost", SessionLostError],
    ["sessionLost", ClosedError],
    ["server", ServerError],
    ["gap", GapError],
  ] as const;
  const kind = kinds.find(([, type]) => error instanceof type)?.[0] ?? "other";
  const code = error instanceof ServerError ? error.code : undefined;
  return { kind, code, message: String((error as Error)?.message ?? error) };
}

async function carryOut(command: Command): Promise<void> {
  let response: object;
  try {
    const run = commands[command.do];
    if (run === undefined) throw new Error(`unknown command "${command.do}"`);
    response = { id: command.id, ok: (await run(command)) ?? {} };
  } catch (error) {
    response = { id: command.id, error: describe(error) };
  }
  process.stdout.write(JSON.stringify(response) + "\n");
}

createInterface({ input: process.stdin })
  .on("line", (line) => void carryOut(JSON.parse(line)))
  // Exits without `close`, so that the server keeps the session for another adapter.
  .on("close", () => process.exit(0));
