/** The files of the machine, under the names of `node:fs/promises`. Paths are absolute. */
import type { Connection } from "./connection.js";
import { DisconnectedError, ServerError } from "./errors.js";
import { FileReader, FileWriter } from "./file-blocks.js";
import type { DirectoryEntry, SandboxRequest } from "./generated.js";
import type { Method, Params, Result } from "./methods.js";
import { fromUri, nameOf, toUri, type PathLike } from "./paths.js";
import { wireSandbox, type Sandbox } from "./sandbox.js";
import { Search, type SearchOptions } from "./search.js";
import { Dirent, Stats } from "./stats.js";
import { Watch, type WatchOptions } from "./watch.js";
import { decodeBase64, decodeText, encodeBase64, toBytes } from "./wire.js";

export { Dirent, Stats } from "./stats.js";

/** Options of every method of `FileSystem`. */
export interface SandboxOptions {
  sandbox?: Sandbox;
}

/** Options of the methods that can refuse symlinks. */
export interface FsOptions extends SandboxOptions {
  /** `false`: no component of the path may be a symlink. */
  followSymlinks?: boolean;
}

export interface WriteOptions extends FsOptions {
  mode?: number;
  /** Readers, even after a crash, see all of the old or all of the new content. */
  atomic?: boolean;
  /** `wx` fails if the file exists. */
  flag?: "w" | "wx";
  /** Write only if the file still has this modification time. */
  ifModifiedAtMs?: number;
  /** Write only if the file still has this size. */
  ifSize?: number;
}

export interface GlobOptions extends SandboxOptions {
  hidden?: boolean;
  /** Include what .gitignore excludes. */
  ignored?: boolean;
  maxEntries?: number;
}

/** Files up to this size are written in one message. */
const ONE_MESSAGE = 32 << 20;

export class FileSystem {
  readonly #connection: Connection;

  /** @internal */
  constructor(connection: Connection) {
    this.#connection = connection;
  }

  readFile(
    path: PathLike,
    options: "utf8" | "utf-8" | (FsOptions & { encoding: "utf8" | "utf-8" }),
  ): Promise<string>;
  readFile(path: PathLike, options?: FsOptions & { encoding?: null }): Promise<Uint8Array>;
  async readFile(
    path: PathLike,
    options: string | (FsOptions & { encoding?: string | null }) = {},
  ): Promise<string | Uint8Array> {
    const { encoding, ...rest } = typeof options === "string" ? { encoding: options } : options;
    let bytes: Uint8Array;
    try {
      const { dataBase64 } = await this.#call("fs/readFile", path, {}, rest);
      bytes = decodeBase64(dataBase64);
    } catch (error) {
      if (!(error instanceof ServerError && error.kind === "fileTooLarge")) throw error;
      bytes = await this.#readLarge(path, rest);
    }
    return encoding ? decodeText(bytes) : bytes;
  }

  /**
   * Replaces the content, or creates the file. With `ifModifiedAtMs` or `ifSize`, only if the file
   * still has that modification time or size.
   */
  async writeFile(
    path: PathLike,
    data: string | Uint8Array | ArrayBuffer,
    options: WriteOptions = {},
  ): Promise<void> {
    const bytes = toBytes(data);
    const { flag, mode, atomic, ifModifiedAtMs, ifSize } = options;
    const createNew = flag === "wx" ? true : undefined;
    if (bytes.length > ONE_MESSAGE) {
      const writer = this.writeStream(path, options).getWriter();
      await writer.write(bytes);
      return writer.close();
    }
    const params = {
      dataBase64: encodeBase64(bytes),
      mode,
      atomic,
      ifModifiedAtMs,
      ifSize,
      createNew,
    };
    await this.#call("fs/writeFile", path, params, options);
  }

  /** The content of a file of any size. The stream ends with an error if the connection is lost. */
  readStream(path: PathLike, options: FsOptions = {}): ReadableStream<Uint8Array> {
    const reader = new FileReader(this.#connection, { path: toUri(path), ...wireOptions(options) });
    const pull = async (controller: ReadableStreamDefaultController<Uint8Array>) => {
      const chunk = await reader.read();
      if (chunk === null) controller.close();
      else controller.enqueue(chunk);
    };
    return new ReadableStream({ pull, cancel: () => reader.close() }, { highWaterMark: 0 });
  }

  /** The file appears, or is replaced, when the stream is closed; an abort leaves it as it was. */
  writeStream(path: PathLike, options: WriteOptions = {}): WritableStream<Uint8Array | string> {
    const { flag, mode, ifModifiedAtMs, ifSize } = options;
    const createNew = flag === "wx" ? true : undefined;
    const params = {
      path: toUri(path),
      mode,
      ifModifiedAtMs,
      ifSize,
      createNew,
      ...wireOptions(options),
    };
    const writer = new FileWriter(this.#connection, params);
    return new WritableStream({
      write: (data) => writer.write(toBytes(data)),
      close: () => writer.commit(),
      abort: () => writer.discard(),
    });
  }

  readdir(path: PathLike, options: SandboxOptions & { withFileTypes: true }): Promise<Dirent[]>;
  readdir(path: PathLike, options?: SandboxOptions & { withFileTypes?: false }): Promise<string[]>;
  async readdir(
    path: PathLike,
    options: SandboxOptions & { withFileTypes?: boolean } = {},
  ): Promise<string[] | Dirent[]> {
    const entries: Dirent[] = [];
    for await (const entry of this.#entries(path, options))
      entries.push(new Dirent(nameOf(entry.path), fromUri(entry.path), entry));
    return options.withFileTypes ? entries : entries.map(({ name }) => name);
  }

  /** Follows a symlink. */
  async stat(path: PathLike, options: FsOptions = {}): Promise<Stats> {
    const metadata = await this.#call("fs/getMetadata", path, {}, options);
    return new Stats({ ...metadata, isSymlink: false });
  }

  /** Like `stat`, but describes a symlink itself, not its target. */
  async lstat(path: PathLike, options: FsOptions = {}): Promise<Stats> {
    try {
      const metadata = await this.#call("fs/getMetadata", path, {}, options);
      if (!metadata.isSymlink) return new Stats(metadata);
    } catch (error) {
      // A dangling symlink has no target to describe.
      if (!(error instanceof ServerError && error.kind === "notFound")) throw error;
    }
    await this.#call("fs/readLink", path, {}, options);
    const uri = toUri(path).replace(/\/+$/, "");
    const [parent, name] = [
      uri.slice(0, uri.lastIndexOf("/")) || "file:///",
      uri.slice(uri.lastIndexOf("/") + 1),
    ];
    for await (const entry of this.#entries(parent, options, 8, `${parent}/${before(name)}`)) {
      if (nameOf(entry.path) === nameOf(uri)) return new Stats(entry);
    }
    throw new ServerError({
      code: -32004,
      message: `${fromUri(uri)} does not exist`,
      data: { kind: "notFound" },
    });
  }

  async exists(path: PathLike, options: FsOptions = {}): Promise<boolean> {
    try {
      await this.#call("fs/getMetadata", path, {}, options);
      return true;
    } catch (error) {
      if (error instanceof ServerError && error.code === -32004) return false;
      throw error;
    }
  }

  async mkdir(path: PathLike, options: FsOptions & { recursive?: boolean } = {}): Promise<void> {
    await this.#call(
      "fs/createDirectory",
      path,
      { recursive: options.recursive ?? false },
      options,
    );
  }

  async rm(
    path: PathLike,
    options: FsOptions & { recursive?: boolean; force?: boolean } = {},
  ): Promise<void> {
    const { recursive = false, force = false } = options;
    await this.#call("fs/remove", path, { recursive, force }, options);
  }

  /** With `replace: false` an existing destination is an error of kind `conflict`. */
  async rename(
    from: PathLike,
    to: PathLike,
    options: FsOptions & { replace?: boolean } = {},
  ): Promise<void> {
    const params = {
      sourcePath: toUri(from),
      destinationPath: toUri(to),
      replace: options.replace,
    };
    await this.#connection.call("fs/rename", { ...params, ...wireOptions(options) });
  }

  async cp(
    from: PathLike,
    to: PathLike,
    options: SandboxOptions & { recursive?: boolean } = {},
  ): Promise<void> {
    const params = {
      sourcePath: toUri(from),
      destinationPath: toUri(to),
      recursive: options.recursive ?? false,
    };
    await this.#connection.call("fs/copy", { ...params, ...wireOptions(options) });
  }

  async symlink(target: string, path: PathLike, options: FsOptions = {}): Promise<void> {
    await this.#call("fs/symlink", path, { target }, options);
  }

  async readlink(path: PathLike, options: FsOptions = {}): Promise<string> {
    const { target, targetBase64 } = await this.#call("fs/readLink", path, {}, options);
    return target ?? decodeText(decodeBase64(targetBase64!));
  }

  async realpath(path: PathLike, options: SandboxOptions = {}): Promise<string> {
    return fromUri((await this.#call("fs/canonicalize", path, {}, options)).path);
  }

  async chmod(path: PathLike, mode: number, options: FsOptions = {}): Promise<void> {
    await this.#call("fs/setPermissions", path, { mode }, options);
  }

  /**
   * Paths below `path` that match: `**` crosses directories, a leading `!` excludes. The list ends
   * early at `maxEntries` and at the limits of the server.
   */
  async glob(
    patterns: string | string[],
    path: PathLike,
    options: GlobOptions = {},
  ): Promise<string[]> {
    const { hidden, ignored, maxEntries } = options;
    const params = { patterns: [patterns].flat(), hidden, ignored, maxEntries };
    const { entries } = await this.#call("fs/glob", path, params, options);
    return entries.map((entry) => fromUri(entry.path));
  }

  /** Watches a file or directory for changes. */
  watch(path: PathLike, options: WatchOptions = {}): Promise<Watch> {
    return Watch.open(this.#connection, path, options);
  }

  /** Lines of files below `path` that match a regular expression, or a string with `literal`. */
  search(pattern: string, path: PathLike, options: SearchOptions = {}): Search {
    return new Search(this.#connection, pattern, path, options);
  }

  async *#entries(
    path: PathLike,
    { sandbox }: SandboxOptions,
    limit = 10_000,
    after?: string,
  ): AsyncGenerator<DirectoryEntry> {
    for (;;) {
      const params = { details: true, limit, after };
      const page = await this.#call("fs/readDirectory", path, params, { sandbox });
      yield* page.entries;
      if (!page.next) return;
      after = page.next;
    }
  }

  /** Starts over after a lost connection: reading twice is harmless. */
  async #readLarge(path: PathLike, options: FsOptions): Promise<Uint8Array> {
    for (;;) {
      try {
        return new Uint8Array(await new Response(this.readStream(path, options)).arrayBuffer());
      } catch (error) {
        if (!(error instanceof DisconnectedError)) throw error;
      }
    }
  }

  #call<M extends MethodOfPath>(
    method: M,
    path: PathLike,
    params: Omit<Params<M>, "path" | keyof FsOptions>,
    options: FsOptions,
  ): Promise<Result<M>> {
    return this.#connection.call(method, {
      path: toUri(path),
      ...params,
      ...wireOptions(options),
    } as Params<M>);
  }
}

/** Methods with a parameter `path`. */
type MethodOfPath = { [M in Method]: Params<M> extends { path: string } ? M : never }[Method];

function wireOptions(options: FsOptions): { sandbox?: SandboxRequest; followSymlinks?: boolean } {
  return { sandbox: wireSandbox(options.sandbox), followSymlinks: options.followSymlinks };
}

/** A percent-encoded name that sorts before this one, with hardly any name in between. */
function before(name: string): string {
  const bytes =
    decodeURIComponent(name).length > 0 ? new TextEncoder().encode(decodeURIComponent(name)) : [];
  const last = bytes.length - 1;
  const encode = (byte: number) => `%${byte.toString(16).padStart(2, "0")}`;
  const head = [...bytes.slice(0, last)].map(encode).join("");
  return `${head}${encode(Math.max(1, bytes[last]! - 1))}%ff%ff`;
}
