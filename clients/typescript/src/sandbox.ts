/** What a process, or a request for files, may do. */
import { toUri, type PathLike } from "./paths.js";

/**
 * `"read-only"`, `"workspace-write"` (the working directory and the temporary directories may be written),
 * or an object of the protocol: docs/sandbox.md has all of it.
 */
export type Sandbox = "read-only" | "workspace-write" | "none" | Workspace | { permissions: object; [member: string]: unknown };

export interface Workspace {
  type: "workspace-write" | "read-only" | "danger-full-access" | "external-sandbox";
  writableRoots?: PathLike[];
  network?: boolean;
  cwd?: PathLike;
  excludeTmpdirEnvVar?: boolean;
  excludeSlashTmp?: boolean;
}

export function wireSandbox(sandbox: Sandbox | undefined): object | undefined {
  if (sandbox === undefined || sandbox === "none") return undefined;
  if (typeof sandbox === "string") return { type: sandbox };
  if ("permissions" in sandbox) return sandbox;
  const { type, writableRoots, network, cwd, excludeTmpdirEnvVar, excludeSlashTmp } = sandbox as Workspace;
  return {
    type,
    ...(writableRoots && { writable_roots: writableRoots.map(toUri) }),
    ...(network !== undefined && { network_access: network }),
    ...(cwd !== undefined && { cwd: toUri(cwd) }),
    ...(excludeTmpdirEnvVar !== undefined && { exclude_tmpdir_env_var: excludeTmpdirEnvVar }),
    ...(excludeSlashTmp !== undefined && { exclude_slash_tmp: excludeSlashTmp }),
  };
}
