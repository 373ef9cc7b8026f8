/** Params and result of each method of the protocol, by its name. */
import type * as wire from "./generated.js";

export interface Methods {
  initialize: [wire.InitializeParams, wire.InitializeResponse];
  "session/close": [wire.SessionCloseParams, wire.Empty];
  "session/list": [wire.Empty, wire.SessionListResponse];
  "environment/info": [wire.Empty, wire.EnvironmentInfo];
  "environment/status": [wire.Empty, wire.EnvironmentStatus];
  "server/status": [wire.Empty, wire.ServerStatus];
  "process/start": [wire.StartParams, wire.StartResponse];
  "process/read": [wire.ReadParams, wire.ReadResponse];
  "process/write": [wire.WriteParams, wire.WriteResponse];
  "process/closeStdin": [wire.ProcessIdParams, wire.CloseStdinResponse];
  "process/resize": [wire.ResizeParams, wire.Empty];
  "process/signal": [wire.SignalParams, wire.Empty];
  "process/terminate": [wire.TerminateParams, wire.TerminateResponse];
  "process/wait": [wire.WaitParams, wire.WaitResponse];
  "process/snapshot": [wire.ProcessIdParams, wire.SnapshotResponse];
  "process/list": [wire.ListParams, wire.ListResponse];
  "process/observe": [wire.ObserveParams, wire.Empty];
  "fs/readFile": [wire.FsReadFileParams, wire.FsReadFileResponse];
  "fs/writeFile": [wire.FsWriteFileParams, wire.FsWriteFileResponse];
  "fs/createDirectory": [wire.FsCreateDirectoryParams, wire.Empty];
  "fs/getMetadata": [wire.FsGetMetadataParams, wire.FsMetadata];
  "fs/canonicalize": [wire.FsCanonicalizeParams, wire.FsPathResponse];
  "fs/readDirectory": [wire.FsReadDirectoryParams, wire.FsReadDirectoryResponse];
  "fs/walk": [wire.FsWalkParams, wire.FsWalkResponse];
  "fs/glob": [wire.FsGlobParams, wire.FsWalkResponse];
  "fs/remove": [wire.FsRemoveParams, wire.Empty];
  "fs/copy": [wire.FsCopyParams, wire.Empty];
  "fs/rename": [wire.FsRenameParams, wire.Empty];
  "fs/symlink": [wire.FsSymlinkParams, wire.Empty];
  "fs/readLink": [wire.FsReadLinkParams, wire.FsReadLinkResponse];
  "fs/setPermissions": [wire.FsSetPermissionsParams, wire.Empty];
  "fs/open": [wire.FsOpenParams, wire.FsHandleResponse];
  "fs/readBlock": [wire.FsReadBlockParams, wire.FsReadBlockResponse];
  "fs/create": [wire.FsCreateParams, wire.FsHandleResponse];
  "fs/writeBlock": [wire.FsWriteBlockParams, wire.Empty];
  "fs/close": [wire.FsCloseParams, wire.FsCloseResponse];
  "fs/watch": [wire.FsWatchParams, wire.FsPathResponse];
  "fs/unwatch": [wire.FsUnwatchParams, wire.Empty];
  "fs/search": [wire.FsSearchParams, wire.FsSearchResponse];
  "fs/cancelSearch": [wire.FsCancelSearchParams, wire.Empty];
  "http/request": [wire.HttpRequestParams, wire.HttpResponse];
  "http/cancel": [wire.HttpCancelParams, wire.Empty];
  "command/exec": [wire.ExecParams, wire.ExecResponse];
  "command/exec/write": [wire.WriteParams, wire.ExecWriteResponse];
  "command/exec/terminate": [wire.TerminateParams, wire.TerminateResponse];
}

export type Method = keyof Methods;
export type Params<M extends Method> = Methods[M][0];
export type Result<M extends Method> = Methods[M][1];
