//! The response to `environment/info`.

use std::path::{Path, PathBuf};

use exec_server_host::process::launch::{Launcher, Teardown};
use exec_server_protocol::{
    Capabilities, EnvironmentInfo, PathUri, ProcessTeardown, RpcError, ShellInfo,
};

use super::files::can_confine;
use super::sandbox::own_tmpdir;

pub(crate) fn environment_info(
    launcher: &Launcher,
    manages_network: bool,
) -> Result<EnvironmentInfo, RpcError> {
    let shell = default_shell();
    let name = shell.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let cwd = std::env::current_dir().map_err(|error| {
        RpcError::internal(format!("cannot get the working directory of the server: {error}"))
    })?;
    // `temporaryDirectories` contains exactly the value of `TMPDIR`: some deployed clients grant it
    // to their sandboxes.
    let tmpdir = own_tmpdir().map(uri).transpose()?;
    let temp_dir = tmpdir.clone().map_or_else(|| uri(PathBuf::from("/tmp")), Ok)?;
    Ok(EnvironmentInfo {
        shell: ShellInfo { name, path: shell.to_string_lossy().into_owned() },
        cwd: uri(cwd)?,
        temporary_directories: tmpdir.into_iter().collect(),
        temp_dir,
        capabilities: Capabilities {
            network_proxy_launch: manages_network,
            http_header_env_vars: true,
            // Block reads and writes are confined to a policy like all other file operations.
            sandboxed_file_streaming: can_confine(),
            ..Capabilities::default()
        },
        process_teardown: teardown(launcher.teardown()),
    })
}

fn teardown(teardown: Teardown) -> ProcessTeardown {
    let whole_tree = teardown == Teardown::WholeTree;
    ProcessTeardown { process_group: true, keeper: whole_tree, pidfd: whole_tree, cgroup: false }
}

fn default_shell() -> PathBuf {
    let from_environment = std::env::var_os("SHELL").map(PathBuf::from);
    let usual = ["/bin/bash", "/bin/sh"].map(PathBuf::from);
    let is_usable = |path: &PathBuf| path.is_absolute() && path.is_file();
    from_environment.into_iter().chain(usual).find(is_usable).unwrap_or_else(|| "/bin/sh".into())
}

fn uri(path: PathBuf) -> Result<PathUri, RpcError> {
    let absolute = std::path::absolute(&path).unwrap_or(path);
    PathUri::from_path(Path::new(&absolute)).ok_or_else(|| {
        RpcError::internal(format!("{} is not an absolute path", absolute.display()))
    })
}
