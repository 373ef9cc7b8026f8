/**
 * A local server as a child process, over stdio. Only for Node, Deno and Bun; imported on demand.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, dirname, join } from "node:path";
import { ConnectError } from "./errors.js";
import type { Dialer, Transport, TransportEvents } from "./transport.js";

const NEWLINE = 10;
/** How many characters of the server's log are kept for the error when the server exits. */
const KEPT_LOG = 2_000;
export const PLATFORM_PACKAGE = `@exec-server/${process.platform}-${process.arch}`;

export class StdioDialer implements Dialer {
  /** A server on stdio, and its session, end with the connection. */
  readonly canRedial = false;

  constructor(readonly command: readonly string[]) {}

  dial(events: TransportEvents, signal: AbortSignal): Promise<Transport> {
    const [program, ...args] = this.command;
    const child = spawn(program!, args, { stdio: ["pipe", "pipe", "pipe"] });
    let [log, answered, ended] = ["", false, false];
    child.stderr
      .setEncoding("utf8")
      .on("data", (text: string) => (log = (log + text).slice(-KEPT_LOG)));
    // Ignored: the event "close" follows.
    child.stdin.on("error", () => {});
    child.stdout.on(
      "data",
      splitLines((line) => {
        answered = true;
        if (!ended) events.onMessage(line);
      }),
    );
    return new Promise((resolve, reject) => {
      const close = () => {
        ended = true;
        if (answered) closeServer(child);
        else killProgram(child);
      };
      signal.addEventListener("abort", close, { once: true });
      child.on("spawn", () => resolve({ send: (text) => child.stdin.write(text + "\n"), close }));
      child.on("error", (cause) => {
        reject(
          new ConnectError(`cannot start ${program}: ${cause.message}`, { permanent: true, cause }),
        );
      });
      child.on("close", (code, killer) => {
        const tail = log.trim() && `; the end of its log: ${log.trim()}`;
        if (!ended)
          events.onClosed(
            `the server ${program} ended with ${killer ?? `exit code ${code}`}${tail}`,
          );
        ended = true;
      });
    });
  }
}

/** Checked in this order: EXEC_SERVER_BINARY, the npm package for this platform, PATH. */
export function findBinary(): string {
  const named = process.env.EXEC_SERVER_BINARY;
  if (named) return named;
  const packaged = findPackagedBinary();
  if (packaged) return packaged;
  for (const directory of (process.env.PATH ?? "").split(delimiter).filter(Boolean)) {
    const candidate = join(directory, "exec-server");
    // The npm package's own launcher may be on the PATH, and would look for the binary again.
    if (isExecutable(candidate) && !candidate.includes(join("node_modules", ".bin")))
      return candidate;
  }
  throw new ConnectError(
    `the exec-server binary was not found: ${howToInstall()}, put exec-server on the PATH, ` +
      `or set EXEC_SERVER_BINARY to its path`,
    { permanent: true },
  );
}

/** The remedy for a missing package of this platform. */
export function howToInstall(): string {
  return PLATFORM_PACKAGE === "@exec-server/linux-x64"
    ? `install ${PLATFORM_PACKAGE} (an optional dependency: run npm install without --omit=optional)`
    : `it needs Linux on x86-64, so there is no ${PLATFORM_PACKAGE}: use Machine.connect to reach a ` +
        `server on another machine`;
}

/** The binary of the npm package for this platform, an optional dependency. */
export function findPackagedBinary(): string | undefined {
  try {
    return createRequire(import.meta.url).resolve(`${PLATFORM_PACKAGE}/exec-server`);
  } catch {
    return undefined;
  }
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return dirname(path) !== path;
  } catch {
    return false;
  }
}

/** Closes the server's stdin: the server then ends all its processes and exits. */
function closeServer(child: ChildProcess): void {
  child.stdin?.end();
  child.stdout?.resume();
}

/** A program that has not answered may not exit at the end of its input, so it is killed. */
function killProgram(child: ChildProcess): void {
  child.kill("SIGKILL");
  // Its children may have these pipes open, which would keep this program alive.
  for (const pipe of [child.stdin, child.stdout, child.stderr]) pipe?.destroy();
}

function splitLines(onLine: (line: string) => void): (chunk: Buffer) => void {
  let rest: Buffer[] = [];
  return (chunk) => {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      const piece = chunk.subarray(start, end);
      const line = rest.length > 0 ? Buffer.concat([...rest, piece]) : piece;
      rest = [];
      start = end + 1;
      if (line.length > 0) onLine(line.toString("utf8"));
    }
    if (start < chunk.length) rest.push(chunk.subarray(start));
  };
}
