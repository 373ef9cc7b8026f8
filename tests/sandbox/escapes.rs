//! Every attempt succeeds without a sandbox and fails in one, for every user and every mechanism.

use std::collections::BTreeSet;

use exec_server_test_support::skipped;

use super::arena::{Arena, Ending, Tier, Verdict};
use super::attempts::{self, Attempt};
use super::{User, programs};

#[test]
fn every_program_is_in_the_table() {
    let all = attempts::all().chain([attempts::AT_SERVER_SOCKET, attempts::GONE_BEFORE_ASKED]);
    let listed: BTreeSet<String> = all.map(|attempt| attempt.name.to_owned()).collect();
    assert_eq!(listed.into_iter().collect::<Vec<_>>(), programs::names());
    assert!(programs::names().len() >= 100);
}

#[test]
fn nothing_escapes_from_namespaces() {
    attack(User::Myself, Tier::Namespaces);
}

#[test]
fn nothing_escapes_from_namespaces_as_an_ordinary_user() {
    attack(User::Nobody, Tier::Namespaces);
}

#[test]
fn nothing_escapes_without_namespaces() {
    attack(User::Myself, Tier::Direct);
}

#[test]
fn nothing_escapes_without_namespaces_as_an_ordinary_user() {
    attack(User::Nobody, Tier::Direct);
}

#[test]
fn nothing_escapes_from_bubblewrap() {
    attack(User::Myself, Tier::Bubblewrap);
}

#[test]
fn nothing_escapes_from_bubblewrap_as_an_ordinary_user() {
    attack(User::Nobody, Tier::Bubblewrap);
}

#[test]
fn a_server_on_a_unix_socket_refuses_its_own_sandboxes() {
    for tier in [Tier::Direct, Tier::Namespaces] {
        let directory = tempfile::tempdir().unwrap();
        let mut arena = Arena::at_socket(User::Myself, tier, &directory.path().join("server.sock"));
        let control = arena.control(attempts::AT_SERVER_SOCKET);
        assert_eq!(control.verdict, Verdict::Escaped, "{control:?}");
        let confined = arena.confined(attempts::AT_SERVER_SOCKET);
        assert_eq!(confined.verdict, Verdict::Blocked, "{tier:?}: {confined:?}");
        assert_eq!(confined.damage, [] as [String; 0], "{tier:?}");
    }
}

/// The requests are sent by a process that exits before the server can identify it.
#[test]
fn a_server_refuses_clients_that_it_cannot_identify() {
    let attempt = attempts::GONE_BEFORE_ASKED;
    let mut arena = Arena::for_all_users(User::Myself, Tier::Direct);
    let control = arena.control(attempt);
    assert_eq!(control.verdict, Verdict::Escaped, "{control:?}");
    let confined = arena.confined(attempt);
    assert_eq!(confined.verdict, Verdict::Blocked, "{confined:?}");
}

/// The program may connect before the server has recorded its start.
#[test]
fn a_server_recognizes_its_sandboxes_from_their_start() {
    let attempt = attempts::all().find(|attempt| attempt.name == "server_listener").unwrap();
    for tier in [Tier::Direct, Tier::Namespaces] {
        let mut arena = Arena::new(User::Myself, tier);
        for round in 0..50 {
            let confined = arena.confined(attempt);
            assert_eq!(confined.verdict, Verdict::Blocked, "{tier:?} {round}: {confined:?}");
        }
    }
}

fn attack(user: User, tier: Tier) {
    if let Some(why) = user.obstacle().or_else(|| tier.obstacle()) {
        return skipped(format_args!("{tier:?} as {user:?}: {why}"));
    }
    let mut arena = Arena::new(user, tier);
    let (mut blocked, mut failures) = (0, Vec::new());
    for attempt in attempts::all().filter(|attempt| tier.can_hold(*attempt)) {
        let control = arena.control(attempt);
        let confined = arena.confined(attempt);
        if let (Tier::Direct, Verdict::Escaped, Some(why)) =
            (tier, confined.verdict, attempt.loose_without_namespaces)
        {
            println!("NOT BLOCKED without namespaces: {}: {why}", attempt.name);
            continue;
        }
        match judge(&arena, attempt, &control, &confined) {
            Ok(Held::Blocked) => {
                println!("{}: {}", attempt.name, confined.said);
                blocked += 1;
            }
            Ok(Held::NotTried) => {
                println!("{}: not tried, because it needs a writable workspace", attempt.name);
            }
            Ok(Held::NothingToHold) => {
                println!("{}: fails without a sandbox as well: {}", attempt.name, control.said);
            }
            Err(why) => failures.push(format!("{attempt:?}: {why}")),
        }
    }
    println!("{blocked} attempts that succeed without a sandbox were blocked in one");
    assert!(failures.is_empty(), "{} attempts:\n{}", failures.len(), failures.join("\n"));
    assert!(blocked >= 100, "only {blocked} attempts were blocked, fewer than 100");
}

enum Held {
    Blocked,
    /// A preparation of the attempt needs write access that this policy does not grant.
    NotTried,
    /// The attempt fails without a sandbox as well, for this user or on this machine.
    NothingToHold,
}

fn judge(
    arena: &Arena,
    attempt: Attempt,
    control: &Ending,
    confined: &Ending,
) -> Result<Held, String> {
    if !confined.damage.is_empty() {
        return Err(format!("{}: {}", confined.damage.join(", "), confined.said));
    }
    match confined.verdict {
        Verdict::Blocked => {}
        Verdict::Unprepared if arena.tier == Tier::Direct => {}
        Verdict::Impossible if control.verdict == Verdict::Impossible => {}
        other => return Err(format!("in the sandbox {other:?}: {}", confined.said)),
    }
    match control.verdict {
        Verdict::Escaped if confined.verdict == Verdict::Unprepared => Ok(Held::NotTried),
        Verdict::Escaped => Ok(Held::Blocked),
        Verdict::Impossible if attempt.may_lack => Ok(Held::NothingToHold),
        Verdict::Blocked | Verdict::Impossible if attempt.root_only && !arena.user.is_root() => {
            Ok(Held::NothingToHold)
        }
        other => Err(format!("without a sandbox {other:?}: {}", control.said)),
    }
}

impl Tier {
    /// Returns the reason if this tier cannot be tested here.
    pub(super) fn obstacle(self) -> Option<&'static str> {
        let is_missing = !["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"]
            .iter()
            .any(|path| std::path::Path::new(path).exists());
        (self == Self::Bubblewrap && is_missing)
            .then_some("bubblewrap is not installed (Debian: apt-get install bubblewrap)")
    }

    fn can_hold(self, attempt: Attempt) -> bool {
        self != Self::Direct || !attempt.goal.needs_mounts()
    }
}
