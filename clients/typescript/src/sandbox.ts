/** The sandbox of a process or a file request, and its form on the wire. */
import type { SandboxProfile, SandboxRequest } from "./generated.js";
import { toUri, type PathLike } from "./paths.js";

/**
 * `"none"` (the default), `"read-only"`, `"workspace-write"` (the working directory and the
 * temporary directories may be written), one of the last two with details, or a profile as in
 * docs/sandbox.md.
 */
export type Sandbox =
  "none" | "read-only" | "workspace-write" | ReadOnly | Workspace | SandboxProfile;

export interface ReadOnly {
  type: "read-only";
  network?: boolean;
}

export interface Workspace {
  type: "workspace-write";
  writableRoots?: PathLike[];
  network?: boolean;
  /** The directory that may be written, instead of the working directory. */
  cwd?: PathLike;
  excludeTmpdirEnvVar?: boolean;
  excludeSlashTmp?: boolean;
}

export function wireSandbox(sandbox: Sandbox | undefined): SandboxRequest | undefined {
  if (sandbox === undefined || sandbox === "none") return undefined;
  if (typeof sandbox === "string") return { type: sandbox };
  if ("permissions" in sandbox) return sandbox;
  if (sandbox.type === "read-only") return { type: sandbox.type, network_access: sandbox.network };
  return {
    type: sandbox.type,
    writable_roots: sandbox.writableRoots?.map(toUri),
    network_access: sandbox.network,
    cwd: sandbox.cwd === undefined ? undefined : toUri(sandbox.cwd),
    exclude_tmpdir_env_var: sandbox.excludeTmpdirEnvVar,
    exclude_slash_tmp: sandbox.excludeSlashTmp,
  };
}
