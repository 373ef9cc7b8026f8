/**
 * Turns the response of `process/read` into numbered events.
 *
 * The response numbers its chunks. It also says whether the process has exited and closed, but
 * without a number: these events have the numbers that no chunk has.
 */
import { ProtocolError, ServerError } from "./errors.js";
import type { ReadResponse } from "./generated.js";
import type { ExitStatus, ProcessLog } from "./process-log.js";
import { decodeBase64 } from "./wire.js";

/**
 * Appends the result of a read whose `afterSeq` was `after`. Throws at impossible numbers, and at a
 * gap if gaps are fatal.
 */
export function applyRead(log: ProcessLog, after: number, response: ReadResponse): void {
  checkNumbers(log, response);
  const knownExit = log.exit?.seq;
  let exit = log.exit === null ? readExit(response) : null;
  let expected = after + 1;
  const dropped = response.droppedBytes ?? 0;
  if (dropped > 0) {
    expected = Math.max(afterGap(response, exit !== null), expected);
    // The log may already have some of the bytes that the server counts from `after`.
    log.skipTo(expected, Math.max(dropped - log.bytesAfter(after), 0));
  }
  /** Returns whether `expected` is the exit's number. Appends the exit if it is new. */
  const placeExit = (): boolean => {
    if (expected !== knownExit && exit === null) return false;
    if (expected !== knownExit && exit !== null) {
      log.offer(expected, { type: "exited", ...exit });
      exit = null;
    }
    expected += 1;
    return true;
  };
  for (const chunk of response.chunks) {
    while (expected < chunk.seq) {
      if (placeExit()) continue;
      // An older server does not report the size of a gap.
      log.skipTo(chunk.seq, 0);
      expected = chunk.seq;
    }
    if (chunk.seq >= log.next) {
      const data = decodeBase64(chunk.chunk);
      // The rest is read once there is room.
      if (log.offer(chunk.seq, { type: "output", stream: chunk.stream, data }) === "full") return;
    }
    expected = chunk.seq + 1;
  }
  while (expected < response.nextSeq) {
    if (placeExit()) continue;
    if (response.closed) log.offer(expected, { type: "closed" });
    else log.skipTo(response.nextSeq, 0);
    break;
  }
  if (response.failure) {
    log.fail(
      new ServerError({ code: -32603, message: response.failure, data: { kind: "processLost" } }),
    );
  }
}

/** The exit of a notification or a read; null if the process has not exited. */
export function readExit(params: object): ExitStatus | null {
  const exit = params as Partial<ExitStatus> & { exited?: boolean };
  if (typeof exit.exitCode !== "number" || exit.exited === false) return null;
  return {
    exitCode: exit.exitCode,
    signal: exit.signal ?? null,
    sandboxDenied: exit.sandboxDenied ?? false,
    denied: exit.denied ?? null,
    timedOut: exit.timedOut ?? false,
    serverStopped: exit.serverStopped ?? false,
    limitsHit: exit.limitsHit ?? [],
    durationMs: exit.durationMs ?? null,
    cpuMs: exit.cpuMs ?? null,
    maxRssBytes: exit.maxRssBytes ?? null,
  };
}

/** A number beyond the safe range would be rounded, and then mean another event. */
export function isSeq(seq: unknown): seq is number {
  return typeof seq === "number" && seq > 0 && Number.isSafeInteger(seq);
}

function checkNumbers(log: ProcessLog, response: ReadResponse): void {
  let last = 0;
  const inOrder = response.chunks.every(({ seq }) => {
    const isNext = isSeq(seq) && seq > last;
    last = seq;
    return isNext;
  });
  if (inOrder && isSeq(response.nextSeq)) return;
  throw new ProtocolError(
    `process "${log.processId}": the server sent impossible sequence numbers ` +
      `(last ${last}, nextSeq ${response.nextSeq})`,
  );
}

/**
 * The first number after a declared gap. If the exit was dropped with the output, it takes the last
 * number of the gap: no other is left.
 */
function afterGap(response: ReadResponse, exitIsNew: boolean): number {
  const closed = response.closed ? 1 : 0;
  const first = response.chunks[0]?.seq;
  if (first === undefined) return Math.max(response.nextSeq - closed - (exitIsNew ? 1 : 0), 0);
  const hasPlace = response.nextSeq - first - closed > response.chunks.length;
  return exitIsNew && !hasPlace ? first - 1 : first;
}
