//! `exec-server rendezvous status`: lists the nodes of a running rendezvous.

use std::fmt::Write as _;
use std::io;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use exec_server_rendezvous::{AdminRequest, AdminResponse, NodeStatus};

use super::credentials::{self, UNEXPECTED_RESPONSE};
use super::print;
use crate::cli::cluster::Store;
use crate::cli::rendezvous::RendezvousCommand;
use crate::terminal::{json_line, printable};

pub(crate) fn run(command: &RendezvousCommand, out: &mut impl io::Write) -> anyhow::Result<()> {
    let RendezvousCommand::Status { json, store } = command;
    let store = store.store()?;
    let AdminResponse::Nodes { nodes } = credentials::ask(&store, AdminRequest::Nodes)? else {
        bail!(UNEXPECTED_RESPONSE);
    };
    if nodes.is_empty() {
        let place = match &store {
            Store::Directory(data) => data.display().to_string(),
            Store::Cluster(_) => "the cluster".to_owned(),
        };
        bail!("no rendezvous is running in {place}, or it has only just started");
    }
    let text = match json {
        true => nodes.iter().map(json_line).collect(),
        false => table(&nodes, SystemTime::now()),
    };
    Ok(print(text.as_bytes(), out)?)
}

fn table(nodes: &[NodeStatus], now: SystemTime) -> String {
    let mut text = String::new();
    for node in nodes {
        let uptime = Duration::from_secs(node.uptime(now).as_secs());
        writeln!(
            text,
            "{}  {}  {}  up {}  {} environments  {} streams  {} frames  {} bytes{}",
            printable(&node.url),
            printable(&node.routing),
            printable(&node.version),
            humantime::format_duration(uptime),
            node.environments,
            node.streams,
            node.frames,
            node.bytes,
            if node.is_leaving { "  leaving" } else { "" },
        )
        .expect("a String accepts every write");
    }
    text
}
