//! The options of `exec-server rendezvous`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use exec_server_telemetry::AuditTarget;
use exec_server_transport::ListenUrl;

use super::cluster::{CLUSTER, StoreOptions};

/// Run a rendezvous, through which clients reach servers that dial out
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct RendezvousArguments {
    #[command(subcommand)]
    pub(crate) command: Option<RendezvousCommand>,
    #[command(flatten)]
    pub(crate) options: RendezvousOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RendezvousCommand {
    /// Show the nodes of a running rendezvous
    Status {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: StoreOptions,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
The first line on standard output is the URL of the rendezvous. Each peer needs a token:
  exec-server token create --data DIR --role environment --environment ID
  exec-server token create --data DIR --role harness --environment ID
The URL itself shows a status page. On loopback it needs no token; otherwise create one:
  exec-server token create --data DIR --role operator")]
pub(crate) struct RendezvousOptions {
    /// Where to listen: http://IP:PORT, https://IP:PORT, or systemd[:NAME] for a socket from
    /// systemd
    // `None` only with a subcommand.
    #[arg(long, value_name = "URL", required = true, value_parser = parse_listen_url)]
    pub(crate) listen: Option<HttpListenUrl>,
    /// The URL for peers, if it differs from the address of --listen
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// The certificate of an https:// listener, followed by those of its authorities, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_key", value_hint = ValueHint::FilePath)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Use a self-signed certificate, created once and kept in the data directory
    #[arg(long, requires = "data", conflicts_with_all = ["tls_cert", "tls_key"])]
    pub(crate) tls_self_signed: bool,
    /// Serve metrics for Prometheus at /metrics
    #[arg(long)]
    pub(crate) metrics: bool,
    /// Record calls, sockets and refusals: journald, journald:SOCKET, or the absolute path of a
    /// file
    #[arg(long, value_name = "TARGET", value_hint = ValueHint::FilePath)]
    pub(crate) audit_log: Option<AuditTarget>,
    /// Allow http:// beyond loopback, for use behind a TLS proxy
    #[arg(long)]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) store: StoreOptions,
    /// The URL at which peers reach this node of a cluster directly: wss://HOST[:PORT] [default:
    /// peers reach any node, and nodes exchange frames over NATS]
    #[arg(long, value_name = "URL", help_heading = CLUSTER, requires = "servers", value_parser = parse_advertised_url)]
    pub(crate) advertise: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HttpListenUrl {
    Address {
        address: SocketAddr,
        is_tls: bool,
    },
    /// A socket from the service manager: the only one, or the one with this name. It serves
    /// `https://` if there is a certificate.
    Systemd(Option<String>),
}

fn parse_listen_url(text: &str) -> Result<HttpListenUrl, String> {
    if text.starts_with("systemd") {
        return match text.parse() {
            Ok(ListenUrl::Systemd(name)) => Ok(HttpListenUrl::Systemd(name)),
            _ => Err("expected systemd or systemd:NAME".to_owned()),
        };
    }
    let (address, is_tls) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(address), _) => (address, false),
        (None, Some(address)) => (address, true),
        (None, None) => ("", false),
    };
    let address = address.strip_suffix('/').unwrap_or(address).parse();
    address.map(|address| HttpListenUrl::Address { address, is_tls }).map_err(|_| {
        "expected http://IP:PORT, https://IP:PORT (port 0 for any free port) or systemd[:NAME]"
            .to_owned()
    })
}

/// Accepts `ws`, `wss`, `http` and `https` URLs; returns an `http` or `https` URL.
fn parse_advertised_url(text: &str) -> Result<String, String> {
    match (text.strip_prefix("ws"), text.strip_prefix("http")) {
        (Some(rest), _) | (None, Some(rest)) => Ok(format!("http{rest}")),
        (None, None) => Err("expected wss://HOST[:PORT]".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_url_needs_an_address_and_a_port_or_a_systemd_socket() {
        let url = |text| parse_listen_url(text).unwrap();
        let address = |address: &str, is_tls| HttpListenUrl::Address {
            address: address.parse().unwrap(),
            is_tls,
        };
        assert_eq!(url("https://[::1]:443/"), address("[::1]:443", true));
        assert_eq!(url("http://127.0.0.1:0"), address("127.0.0.1:0", false));
        assert_eq!(url("systemd"), HttpListenUrl::Systemd(None));
        assert_eq!(url("systemd:web"), HttpListenUrl::Systemd(Some("web".to_owned())));
        for text in [
            "",
            "127.0.0.1:1",
            "http://localhost:1",
            "http://127.0.0.1",
            "ws://127.0.0.1:1",
            "systemd:",
            "systemdx",
        ] {
            assert!(parse_listen_url(text).is_err(), "{text}");
        }
    }
}
