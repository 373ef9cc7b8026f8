/** Run processes and work with files on another machine, over connections that may be lost. */
export { Machine, type ConnectOptions, type LocalOptions, type SpawnOptions } from "./machine.js";
export { Process, type ProcessState } from "./process.js";
export type { ExecOptions, ExecResult } from "./exec.js";
export type { ExitStatus, ProcessEvent, StreamName } from "./process-log.js";
export type { ConnectionState } from "./connection.js";
export type { RecoveryPolicy } from "./recovery.js";
export type { ReadOnly, Sandbox, Workspace } from "./sandbox.js";
export type { SignalName } from "./signals.js";
export type {
  Dirent,
  FileSystem,
  FsOptions,
  GlobOptions,
  SandboxOptions,
  Stats,
  WriteOptions,
} from "./fs.js";
export type { Change, Changes, Watch, WatchOptions } from "./watch.js";
export type { Search, SearchMatch, SearchOptions, SearchSummary } from "./search.js";
export type { Http, HttpInit } from "./http.js";
export type { PathLike } from "./paths.js";
export type { Token } from "./websocket.js";
/** The params and results of `machine.call`. */
export type * as wire from "./generated.js";
export * from "./errors.js";
