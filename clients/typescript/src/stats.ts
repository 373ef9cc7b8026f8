/** The metadata of files, with the methods of Node's `Stats` and `Dirent`. */
import type { DirectoryEntry, FsMetadata } from "./generated.js";

type Metadata = FsMetadata | DirectoryEntry;

class FileKind {
  readonly #metadata: Metadata;

  constructor(metadata: Metadata) {
    this.#metadata = metadata;
  }

  isFile(): boolean {
    return this.#metadata.isFile && !this.#metadata.isSymlink;
  }
  isDirectory(): boolean {
    return this.#metadata.isDirectory && !this.#metadata.isSymlink;
  }
  isSymbolicLink(): boolean {
    return this.#metadata.isSymlink ?? false;
  }
  isFIFO(): boolean {
    return this.#metadata.special === "fifo";
  }
  isSocket(): boolean {
    return this.#metadata.special === "socket";
  }
  isCharacterDevice(): boolean {
    return this.#metadata.special === "characterDevice";
  }
  isBlockDevice(): boolean {
    return this.#metadata.special === "blockDevice";
  }
}

export class Stats extends FileKind {
  /** Exact up to 2^53 - 1 bytes. */
  readonly size: number;
  readonly mode: number;
  readonly mtimeMs: number;
  readonly mtime: Date;
  /** 0 if the file system does not record it, and for a symlink. */
  readonly birthtimeMs: number;
  readonly birthtime: Date;

  constructor(metadata: Metadata) {
    super(metadata);
    this.size = metadata.size ?? 0;
    this.mode = metadata.mode ?? 0;
    this.mtimeMs = metadata.modifiedAtMs ?? 0;
    this.mtime = new Date(this.mtimeMs);
    this.birthtimeMs = "createdAtMs" in metadata ? metadata.createdAtMs : 0;
    this.birthtime = new Date(this.birthtimeMs);
  }
}

export class Dirent extends FileKind {
  constructor(
    readonly name: string,
    /** The absolute path of the entry, including `name`. */
    readonly path: string,
    metadata: Metadata,
  ) {
    super(metadata);
  }
}
