//! Several nodes of a rendezvous that share their state in NATS.

mod faults;
mod load_balancer;
mod namespace;
mod site;
