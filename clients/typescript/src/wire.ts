/** Which requests may be repeated, ids, and the encoding of bytes. */
import type { Method } from "./methods.js";

/** Whether a request may be sent again when the connection was lost before its response. */
export function isReplayable(method: Method, params: object): boolean {
  return method === "process/write" ? "writeId" in params : IDEMPOTENT.has(method);
}

const IDEMPOTENT = new Set<Method>([
  "session/list",
  "environment/info",
  "environment/status",
  "server/status",
  "process/read",
  "process/closeStdin",
  "process/resize",
  "process/terminate",
  "process/wait",
  "process/snapshot",
  "process/list",
  "process/observe",
  "fs/readFile",
  "fs/getMetadata",
  "fs/canonicalize",
  "fs/readDirectory",
  "fs/walk",
  "fs/glob",
  "fs/readLink",
  "fs/open",
  "fs/unwatch",
  "fs/cancelSearch",
  "http/cancel",
]);

interface NodeBuffer {
  from(data: string, encoding: "base64"): Uint8Array;
  from(
    data: ArrayBufferLike,
    offset: number,
    length: number,
  ): { toString(encoding: "base64"): string };
}
const buffer = (globalThis as { Buffer?: NodeBuffer }).Buffer;
const native = Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array };

export const decodeBase64: (text: string) => Uint8Array = buffer
  ? (text) => {
      const bytes = buffer.from(text, "base64");
      return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    }
  : native.fromBase64
    ? (text) => native.fromBase64!(text)
    : (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

export function encodeBase64(bytes: Uint8Array): string {
  if (buffer)
    return buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  let text = "";
  // `fromCharCode` takes the bytes as arguments, whose number is limited.
  for (let at = 0; at < bytes.length; at += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(text);
}

const encoder = new TextEncoder();

export function toBytes(data: string | Uint8Array | ArrayBuffer): Uint8Array {
  if (typeof data === "string") return encoder.encode(data);
  return data instanceof Uint8Array ? data : new Uint8Array(data);
}

/** Keeps a byte order mark, as Node does: a file that is read and written back is unchanged. */
export function decodeText(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

/** An id that no other client has chosen. */
export function uniqueId(): string {
  // Not `randomUUID`: pages loaded over plain http do not have it.
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
