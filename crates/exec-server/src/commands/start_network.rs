//! The hosts that a command may reach: from its flags, and from the sandbox of its environment.

use exec_server_client::NetworkRequestHandler;

use super::ask_network;
use super::wording::UsageError;
use crate::cli::sandbox::SandboxFlags;
use crate::environment::host_options::HostOptions;
use crate::target::Target;

/// Combines the host options. `--sandbox` replaces the environment's sandbox, including its hosts.
/// Without it, flags add to the hosts of the environment. `can_ask`: the command accepts
/// `--ask-network`.
pub(super) fn hosts(
    flags: &SandboxFlags,
    target: &Target,
    can_ask: bool,
) -> anyhow::Result<HostOptions> {
    let default = target.default_sandbox().filter(|_| flags.sandbox.is_none());
    let mut hosts = default.map(|sandbox| sandbox.hosts.clone()).unwrap_or_default();
    hosts.extend(&flags.hosts.options());
    if hosts.has_rules() && !hosts.can_reach_any() {
        let text = match can_ask {
            true => "no host would be allowed; name one with --allow-host, or use --ask-network",
            false => "no host would be allowed; name one with --allow-host",
        };
        return Err(UsageError(text.to_owned()).into());
    }
    Ok(hosts)
}

/// Prepares the questions about unknown hosts. A missing terminal is an error only if a flag
/// requires the questions (`is_required`), not if the environment requests them.
pub(super) fn asking(
    hosts: &mut HostOptions,
    is_required: bool,
    argv: &[String],
) -> anyhow::Result<Option<NetworkRequestHandler>> {
    if !hosts.ask {
        return Ok(None);
    }
    match ask_network::handler(argv) {
        Ok(handler) => Ok(Some(handler)),
        Err(error) if is_required => Err(error),
        Err(_) => {
            hosts.ask = false;
            Ok(None)
        }
    }
}
