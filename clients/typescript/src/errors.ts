/** The errors of this package, one class for each way to react. */

/** The base class of all errors of this package. */
export class ExecServerError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** No connection could be made. */
export class ConnectError extends ExecServerError {
  /** Whether another attempt would be pointless, as with a wrong token. */
  readonly permanent: boolean;
  constructor(message: string, options: { permanent?: boolean; cause?: unknown } = {}) {
    super(message, { cause: options.cause });
    this.permanent = options.permanent ?? false;
  }
}

/**
 * The connection was lost before the response. The request may or may not have been carried out.
 */
export class DisconnectedError extends ExecServerError {
  readonly method: string;
  constructor(method: string) {
    super(
      `${method}: the connection was lost before the response, and the request may or may not ` +
        `have been carried out; check, then decide whether to repeat it`,
    );
    this.method = method;
  }
}

/** The server no longer has the session, or the recovery timed out. Connect again. */
export class SessionLostError extends ExecServerError {}

/** This program has closed or disconnected the machine. */
export class ClosedError extends ExecServerError {
  constructor() {
    super("the machine is closed; call Machine.connect again");
  }
}

/** The server answered with an error. */
export class ServerError extends ExecServerError {
  readonly code: number;
  /** A stable word for programs, such as `notFound` or `programNotFound`. */
  readonly kind: string | null;
  readonly data: unknown;
  constructor(error: unknown) {
    const { code, message, data } = (error ?? {}) as {
      code?: unknown;
      message?: unknown;
      data?: unknown;
    };
    super(
      typeof message === "string"
        ? message
        : `the server sent an invalid error: ${JSON.stringify(error)?.slice(0, 200)}`,
    );
    this.code = typeof code === "number" ? code : -32603;
    this.data = data;
    const kind = (data as { kind?: unknown } | null | undefined)?.kind;
    this.kind = typeof kind === "string" ? kind : null;
  }
}

/** Output of a process is missing. */
export class GapError extends ExecServerError {
  readonly processId: string;
  readonly droppedBytes: number;
  constructor(processId: string, droppedBytes: number) {
    const amount = droppedBytes > 0 ? `${droppedBytes} bytes` : "an unknown amount";
    super(
      `process "${processId}" lost ${amount} of its output; ` +
        `use events() to receive gaps as events instead`,
    );
    this.processId = processId;
    this.droppedBytes = droppedBytes;
  }
}

/** The server broke the protocol. */
export class ProtocolError extends ExecServerError {}

/** The process takes no input. */
export class StdinClosedError extends ExecServerError {
  constructor(processId: string, isKnown: boolean) {
    super(
      isKnown
        ? `process "${processId}": stdin is closed; spawn with stdin: "pipe" and write before ` +
            `the process exits`
        : `cannot write to process "${processId}": the server no longer knows it`,
    );
  }
}
