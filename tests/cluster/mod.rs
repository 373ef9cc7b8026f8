//! Several nodes of a rendezvous that share their state in NATS.

mod commands;
mod faults;
mod load_balancer;
mod mesh;
mod namespace;
mod site;
