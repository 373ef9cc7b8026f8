//! Without a policy, every attempt succeeds; under its policy, it reaches only allowed servers.

use std::collections::BTreeSet;

use exec_server_test_support::skipped;
use serde_json::json;

use super::attempts::{ADDRESSES, Attempt, KERNEL, NAMES, PROXY, Proof, REQUESTS, SOCKS};
use super::world::{Contact, Ending, World, python};
use crate::support::{AckingInbox, Client, Inbox as _};

pub(super) const PRELUDE: &str = include_str!("prelude.py");

#[test]
fn there_are_enough_attempts_with_unique_names() {
    let groups = [ADDRESSES, NAMES, KERNEL, PROXY, REQUESTS, SOCKS];
    let names: BTreeSet<&str> = groups.iter().copied().flatten().map(|one| one.name).collect();
    assert_eq!(names.len(), groups.iter().map(|group| group.len()).sum::<usize>());
    assert!(names.len() >= 80, "{}", names.len());
}

#[test]
fn no_address_bypasses_the_policy() {
    attack(ADDRESSES);
}

#[test]
fn no_name_and_no_name_server_bypasses_the_policy() {
    attack(NAMES);
}

#[test]
fn no_other_protocol_and_no_other_process_bypasses_the_policy() {
    attack(KERNEL);
}

#[test]
fn the_http_proxy_connects_to_allowed_hosts_only() {
    attack(PROXY);
}

#[test]
fn no_request_reaches_more_than_the_policy_saw() {
    attack(REQUESTS);
}

#[test]
fn the_socks_proxy_connects_to_allowed_hosts_only() {
    attack(SOCKS);
}

#[test]
fn an_ordinary_user_cannot_bypass_the_policy() {
    for attempts in [ADDRESSES, NAMES, KERNEL] {
        attack_in(World::of_nobody(), attempts);
    }
}

/// Without namespaces, Landlock and seccomp allow only connections to the proxies.
#[test]
fn no_attempt_bypasses_the_policy_without_namespaces() {
    for attempts in [ADDRESSES, NAMES, KERNEL] {
        attack_in(World::without_namespaces(), attempts);
    }
}

/// Starts an unrestricted process with a socket, as the same user. Returns its pid.
fn start_victim(world: &mut World, client: &mut Client) -> String {
    let program = "
import os, socket
kept = socket.create_server(('127.0.0.1', 0))
print(os.getpid(), flush=True)
kept.accept()";
    let start = world.start(&[python(), "-c", program], &json!({}));
    client.start(&start);
    let mut inbox = AckingInbox::new(start.id());
    client.wait_for_output(&mut inbox, "\n");
    inbox.transcript().text().trim().to_owned()
}

/// The outcome of an attempt, as reported by its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Escaped,
    Refused,
    /// The program cannot tell whether it reached a server; the servers' records decide.
    Sent,
    Impossible,
    Mistaken,
}

impl Verdict {
    fn of(ending: &Ending) -> Self {
        const KILLED_BY_SIGSYS: i64 = 128 + 31;
        match ending.code {
            Some(0) => Self::Escaped,
            Some(42 | KILLED_BY_SIGSYS) => Self::Refused,
            Some(43) => Self::Sent,
            Some(77) => Self::Impossible,
            _ => Self::Mistaken,
        }
    }
}

fn attack(attempts: &[Attempt]) {
    attack_in(World::new(), attempts);
}

fn attack_in(world: Result<World, String>, attempts: &[Attempt]) {
    let mut world = match world {
        Ok(world) => world,
        Err(why) => return skipped(format_args!("attempts to reach the network: {why}")),
    };
    let mut client = world.client();
    let victim = start_victim(&mut world, &mut client);
    let mut failures = Vec::new();
    let world_has_namespaces = world.has_namespaces();
    let is_held = |attempt: &&Attempt| world_has_namespaces || !attempt.needs_namespaces;
    for attempt in attempts.iter().filter(is_held) {
        match control(&mut world, &mut client, attempt, &victim) {
            Ok(Control::Succeeded) => {}
            Ok(Control::OnlyForRoot) => continue,
            Ok(Control::Impossible) => {
                skipped(format_args!(
                    "network attempt {}: this machine lacks a requirement",
                    attempt.name
                ));
                continue;
            }
            Err(failure) => {
                failures.push(format!("{}: without a policy: {failure}", attempt.name));
                continue;
            }
        }
        if let Err(failure) = confined(&mut world, &mut client, attempt, &victim) {
            failures.push(format!("{}: {failure}", attempt.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The outcome of a run without a policy. An attempt that does not work is an error instead.
enum Control {
    Succeeded,
    /// Succeeds only as root, even without a policy.
    OnlyForRoot,
    /// This machine lacks a requirement.
    Impossible,
}

fn control(
    world: &mut World,
    client: &mut Client,
    attempt: &Attempt,
    victim: &str,
) -> Result<Control, String> {
    let ending = make(world, client, attempt, victim, true);
    let contacts = world.contacts();
    let succeeded = match (Verdict::of(&ending), attempt.proof) {
        (Verdict::Impossible, _) => return Ok(Control::Impossible),
        (Verdict::Refused, Proof::Word) if world.is_of_nobody() => return Ok(Control::OnlyForRoot),
        (Verdict::Mistaken, _) => false,
        (_, Proof::Contact) => !contacts.is_empty(),
        (verdict, Proof::Answer) => verdict == Verdict::Escaped && !contacts.is_empty(),
        (verdict, Proof::Word) => verdict == Verdict::Escaped,
    };
    if succeeded { Ok(Control::Succeeded) } else { Err(format!("{ending:?} {contacts:?}")) }
}

fn confined(
    world: &mut World,
    client: &mut Client,
    attempt: &Attempt,
    victim: &str,
) -> Result<(), String> {
    let ending = make(world, client, attempt, victim, false);
    let leaks: Vec<Contact> = world.leaks().into_iter().filter(|at| is_leak(attempt, at)).collect();
    if !leaks.is_empty() {
        return Err(format!("{leaks:?} {ending:?}"));
    }
    match Verdict::of(&ending) {
        Verdict::Refused | Verdict::Sent => Ok(()),
        Verdict::Escaped | Verdict::Impossible | Verdict::Mistaken => Err(format!("{ending:?}")),
    }
}

fn is_leak(attempt: &Attempt, Contact(place, text): &Contact) -> bool {
    !attempt.may_reach.contains(&place.as_str()) || text.contains("smuggled")
}

fn make(
    world: &mut World,
    client: &mut Client,
    attempt: &Attempt,
    victim: &str,
    is_control: bool,
) -> Ending {
    let mut fields = if is_control { json!({}) } else { attempt.policy.fields() };
    if world.has_namespaces()
        && let Some(rules) = fields.get_mut("network")
    {
        rules["require"] = "transparent".into();
    }
    let program = format!("{PRELUDE}\n{}", attempt.code);
    // A reset connection must cause an error and not kill the shell.
    let script = attempt.code.strip_prefix("#!").map(|script| format!("trap '' PIPE; {script}"));
    let argv = match &script {
        Some(script) => ["/bin/bash", "-c", script],
        None => [python(), "-c", &program],
    };
    let mut start = world.start(&argv, &fields).variable("VICTIM", victim);
    if is_control {
        start = start.variable("CONTROL", "1");
    }
    super::world::finish(client, &start)
}
