/** `exec`: a command's output and exit as one value. */
import type { SpawnOptions } from "./machine.js";
import type { Process } from "./process.js";
import type { ExitStatus } from "./process-log.js";
import { decodeText } from "./wire.js";

export interface ExecOptions extends Omit<SpawnOptions, "stdin"> {
  /** Written to stdin, which is then closed. */
  input?: string | Uint8Array;
  /** Called with each piece of output; a promise that it returns is awaited before the next. */
  onStdout?: (chunk: Uint8Array) => void | Promise<void>;
  onStderr?: (chunk: Uint8Array) => void | Promise<void>;
  /**
   * How many bytes of each stream are kept, half of them from its beginning and half from its end;
   * 16 MiB by default.
   */
  maxOutput?: number;
  /** `utf8` (default), or `buffer` for bytes. */
  encoding?: "utf8" | "buffer";
}

export interface ExecResult<T = string> {
  /** 128 + N if signal N killed the command. */
  exitCode: number;
  stdout: T;
  stderr: T;
  /**
   * Whether output is missing: a stream was longer than `maxOutput`, or the server dropped output
   * (`onFull: "discard"`).
   */
  truncated: boolean;
  /** The number of the signal that killed the command. */
  signal: number | null;
  /**
   * A limit that the command reached: `wallTime` (also for the option `timeout`), `memory`, `pids`,
   * `cpuTime` or `fileSize`; the first of several.
   */
  limit: string | null;
  /** The access that the sandbox denied, if that seems to be why the command failed. */
  denied: { path?: string; call?: string; host?: string } | null;
}

const DEFAULT_MAX_OUTPUT = 16 << 20;

export async function collect(
  process: Process,
  options: ExecOptions,
): Promise<ExecResult<string | Uint8Array>> {
  const limit = options.maxOutput ?? DEFAULT_MAX_OUTPUT;
  const [stdout, stderr] = [new Kept(limit), new Kept(limit)];
  let exit: ExitStatus | undefined;
  let dropped = false;
  // It is not an error if a program does not read all of its input.
  if (options.input !== undefined) feed(process, options.input).catch(() => {});
  try {
    await process.consume((event) => {
      if (event.type === "output") {
        const isError = event.stream === "stderr";
        (isError ? stderr : stdout).add(event.data);
        return (isError ? options.onStderr : options.onStdout)?.(event.data);
      }
      if (event.type === "exited") exit = event;
      if (event.type === "gap") dropped = true;
    });
  } catch (error) {
    // The callback failed, or the process can no longer be followed: the result is of no use.
    process.terminate().catch(() => {});
    throw error;
  }
  options.signal?.throwIfAborted();
  const { exitCode, signal, sandboxDenied, denied, timedOut, limitsHit } = exit!;
  const decode =
    options.encoding === "buffer" ? (kept: Kept) => kept.bytes() : (kept: Kept) => kept.text();
  return {
    exitCode,
    stdout: decode(stdout),
    stderr: decode(stderr),
    truncated: stdout.truncated || stderr.truncated || dropped,
    signal,
    limit: limitsHit[0] ?? (timedOut ? "wallTime" : null),
    denied: sandboxDenied ? (denied ?? {}) : null,
  };
}

async function feed(process: Process, input: string | Uint8Array): Promise<void> {
  await process.write(input);
  await process.closeStdin();
}

/** The beginning and the end of a stream. */
class Kept {
  truncated = false;
  readonly #head: Uint8Array[] = [];
  #headSize = 0;
  #tail: Uint8Array[] = [];
  #tailSize = 0;
  readonly #half: number;

  constructor(limit: number) {
    this.#half = Math.max(1, limit >> 1);
  }

  add(data: Uint8Array): void {
    const room = this.#half - this.#headSize;
    if (room > 0) {
      const piece = data.subarray(0, room);
      this.#head.push(piece);
      this.#headSize += piece.length;
      data = data.subarray(piece.length);
    }
    if (data.length === 0) return;
    this.#tail.push(data);
    this.#tailSize += data.length;
    // Pieces are dropped in batches, so that long output is not shifted piece by piece.
    if (this.#tailSize > 4 * this.#half) this.#cut();
  }

  bytes(): Uint8Array {
    this.#cut();
    const pieces = [...this.#head, ...this.#tail];
    if (pieces.length === 1) return pieces[0]!;
    const bytes = new Uint8Array(this.#headSize + this.#tailSize);
    let at = 0;
    for (const piece of pieces) {
      bytes.set(piece, at);
      at += piece.length;
    }
    return bytes;
  }

  text(): string {
    return decodeText(this.bytes());
  }

  #cut(): void {
    let [first, excess] = [0, this.#tailSize - this.#half];
    if (excess <= 0) return;
    this.truncated = true;
    while (excess > 0) {
      const piece = this.#tail[first]!;
      const cut = Math.min(excess, piece.length);
      this.#tail[first] = piece.subarray(cut);
      if (cut === piece.length) first += 1;
      excess -= cut;
    }
    this.#tail = this.#tail.slice(first);
    this.#tailSize = this.#half;
  }
}
