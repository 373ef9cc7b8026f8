/**
 * Files of any size, block by block. Handles end with their connection, and are not opened again.
 */
import type { Connection } from "./connection.js";
import { DisconnectedError, ExecServerError, ServerError } from "./errors.js";
import type { FsCreateParams, FsOpenParams } from "./generated.js";
import type { Method, Params, Result } from "./methods.js";
import { fromUri } from "./paths.js";
import { decodeBase64, encodeBase64, uniqueId } from "./wire.js";

/** The largest block of the protocol. */
const BLOCK = 1 << 20;

abstract class Handle {
  protected readonly handleId = uniqueId();
  #opened: Promise<unknown> | undefined;

  constructor(protected readonly connection: Connection) {}

  protected abstract open(): Promise<unknown>;

  protected async call<M extends Method>(method: M, params: Params<M>): Promise<Result<M>> {
    this.#opened ??= this.open();
    await this.#opened;
    try {
      return await this.connection.call(method, params);
    } catch (error) {
      // The connection that had the handle was replaced between two blocks.
      const gone = error instanceof ServerError && error.kind === "unknownHandle";
      if (gone)
        throw new DisconnectedError(
          method,
          "the connection was lost, and the handle of the file with it; start over",
        );
      // Streams call neither `close` nor `abort` after a failure, so close the handle here.
      if (error instanceof ServerError && method !== "fs/close") void this.closeHandle(true);
      throw error;
    }
  }

  protected async closeHandle(discard?: boolean): Promise<void> {
    if (this.#opened === undefined) return;
    await this.call("fs/close", { handleId: this.handleId, discard }).catch(() => {});
  }
}

export class FileReader extends Handle {
  #offset = 0;
  #ended = false;

  constructor(
    connection: Connection,
    private readonly params: Omit<FsOpenParams, "handleId">,
  ) {
    super(connection);
  }

  protected override open(): Promise<unknown> {
    return this.connection.call("fs/open", { handleId: this.handleId, ...this.params });
  }

  /** Returns the next block; null at the end of the file. */
  async read(): Promise<Uint8Array | null> {
    if (this.#ended) return null;
    const params = { handleId: this.handleId, offset: this.#offset, len: BLOCK };
    const { chunk, eof } = await this.call("fs/readBlock", params);
    const bytes = decodeBase64(chunk);
    this.#offset += bytes.length;
    if (eof) {
      this.#ended = true;
      await this.close();
    }
    return bytes.length > 0 || !eof ? bytes : null;
  }

  close(): Promise<void> {
    return this.closeHandle();
  }
}

export class FileWriter extends Handle {
  #offset = 0;

  constructor(
    connection: Connection,
    private readonly params: Omit<FsCreateParams, "handleId">,
  ) {
    super(connection);
  }

  protected override open(): Promise<unknown> {
    return this.connection.call("fs/create", { handleId: this.handleId, ...this.params });
  }

  async write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; at += BLOCK) {
      const block = bytes.subarray(at, at + BLOCK);
      const params = { handleId: this.handleId, offset: this.#offset, chunk: encodeBase64(block) };
      await this.call("fs/writeBlock", params);
      this.#offset += block.length;
    }
  }

  /** Makes the file appear under its path. */
  async commit(): Promise<void> {
    const { committed } = await this.call("fs/close", { handleId: this.handleId });
    // The server answers {} for a handle that it does not know: the connection was replaced.
    if (!committed) {
      const reason =
        `${fromUri(this.params.path)} was not written: the connection was lost before the file ` +
        "was closed; write it again";
      throw this.#offset > 0
        ? new DisconnectedError("fs/close", reason)
        : new ExecServerError(reason);
    }
  }

  discard(): Promise<void> {
    return this.closeHandle(true);
  }
}
