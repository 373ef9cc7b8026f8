//! Checks the nodes of a rendezvous cluster, as reported to NATS.

use std::collections::BTreeSet;

use exec_server_rendezvous::{
    AdminRequest, AdminResponse, NatsOptions, NodeStatus, administer_cluster,
};

use super::checks::Check;

pub(super) async fn checks(options: &NatsOptions) -> Vec<Check> {
    let nodes = match administer_cluster(options, AdminRequest::Nodes).await {
        Ok(AdminResponse::Nodes { nodes }) => nodes,
        Ok(_) => {
            return vec![Check::fails(
                "NATS",
                "unexpected response instead of the list of nodes; this is a bug",
            )];
        }
        Err(error) => {
            return vec![Check::fails("NATS", format!("{:#}", anyhow::Error::new(error)))];
        }
    };
    let nats = Check::works("NATS", "the state of the cluster is readable");
    vec![nats, count(&nodes), routing(&nodes)]
}

fn count(nodes: &[NodeStatus]) -> Check {
    let leaving = nodes.iter().filter(|node| node.is_leaving).count();
    match (nodes.len(), leaving) {
        (0, _) => Check::fails("nodes", "no node has reported within 30 s"),
        (all, leaving) if all == leaving => {
            Check::fails("nodes", format!("all {all} are moving their environments to other nodes"))
        }
        (all, 0) => Check::works("nodes", all.to_string()),
        (all, leaving) => Check::works(
            "nodes",
            format!("{all}, {leaving} of them moving environments to other nodes"),
        ),
    }
}

fn routing(nodes: &[NodeStatus]) -> Check {
    let kinds: BTreeSet<_> = nodes.iter().map(|node| node.routing.as_str()).collect();
    let mut kinds = kinds.into_iter();
    match (kinds.next(), kinds.next()) {
        (Some(kind), None) => Check::works("routing", kind),
        (Some(_), Some(_)) => Check::fails(
            "routing",
            "some nodes have an advertised URL and others do not; give --advertise to all of \
             them, or to none",
        ),
        (None, _) => Check::fails("routing", "unknown, because no node has reported"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(routing: &str, is_leaving: bool) -> NodeStatus {
        NodeStatus {
            id: "id".to_owned(),
            url: "wss://node".to_owned(),
            version: "1".to_owned(),
            started: 0,
            routing: routing.to_owned(),
            environments: 0,
            streams: 0,
            frames: 0,
            bytes: 0,
            is_leaving,
        }
    }

    #[test]
    fn nodes_must_agree_on_the_routing() {
        assert!(routing(&[node("direct", false), node("direct", true)]).works);
        assert_eq!(routing(&[node("over NATS", false)]).detail, "over NATS");
        let mixed = routing(&[node("direct", false), node("over NATS", false)]);
        assert!(!mixed.works && mixed.detail.contains("--advertise"), "{mixed:?}");
        assert!(!routing(&[]).works);
    }

    #[test]
    fn a_cluster_needs_a_node_that_stays() {
        assert!(!count(&[]).works);
        assert!(!count(&[node("direct", true)]).works);
        let one_leaves = count(&[node("direct", true), node("direct", false)]);
        assert!(one_leaves.works);
        assert_eq!(one_leaves.detail, "2, 1 of them moving environments to other nodes");
    }
}
