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
 * The connection was lost before the response, or before the end of a file stream or an HTTP body.
 * The request may or may not have been carried out.
 */
export class DisconnectedError extends ExecServerError {
  readonly method: string;
  constructor(
    method: string,
    reason = "the connection was lost before the response, and the request may or may not have " +
      "been carried out; check, then decide whether to repeat it",
  ) {
    super(`${method}: ${reason}`);
    this.method = method;
  }
}

/**
 * The session is over: the server has exited, no longer has it, refuses this client, or could not
 * be reached in time. Connect again.
 */
export class SessionLostError extends ExecServerError {}

/** This program has closed or disconnected the machine. */
export class ClosedError extends ExecServerError {
  constructor() {
    super("this program has closed or disconnected the machine; connect again");
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
  constructor(processId: string, droppedBytes: number, options: { fatal?: boolean } = {}) {
    const amount = droppedBytes > 0 ? `${droppedBytes} bytes` : "an unknown amount";
    const advice = options.fatal
      ? 'it is terminated, because it was not started with onFull: "discard"'
      : "use events() to receive gaps as events instead";
    super(`process "${processId}" lost ${amount} of its output; ${advice}`);
    this.processId = processId;
    this.droppedBytes = droppedBytes;
  }
}

/** The server broke the protocol. */
export class ProtocolError extends ExecServerError {}

/** The process takes no input. */
export class StdinClosedError extends ExecServerError {
  /** `status` is that of the response to `process/write`. */
  constructor(processId: string, status: string) {
    const reason =
      status === "stdinClosed"
        ? 'its stdin is closed; spawn with stdin: "pipe", and write before closeStdin and before ' +
          "the process exits"
        : status === "unknownProcess"
          ? "the server no longer knows it"
          : `the server answered "${status}"`;
    super(`cannot write to process "${processId}": ${reason}`);
  }
}
