//! What a start costs against the machine's own limit, in one run with interleaved rounds.

use std::process::Stdio;
use std::time::{Duration, Instant};

use exec_server_host::process::launch::{Command, Launcher, TreeEvent};

use super::shell;

const ROUNDS: usize = 2000;

pub(crate) async fn compare_with_a_bare_spawn(launcher: Launcher) {
    let mut bare = Vec::with_capacity(ROUNDS);
    let mut kept = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        spawn_and_wait();
        bare.push(started.elapsed());

        let started = Instant::now();
        let command = Command { argv: vec!["/bin/true".into()], ..shell("") };
        let mut launched = launcher.launch(command).await.unwrap();
        assert!(matches!(launched.tree.next_event().await, TreeEvent::Exited(_)));
        kept.push(started.elapsed());
        assert_eq!(launched.tree.next_event().await, TreeEvent::Emptied);
    }
    let (bare, kept) = (median(bare), median(kept));
    let ratio = kept.as_secs_f64() / bare.as_secs_f64();
    println!("bare spawn {bare:?}, start to exit {kept:?}, ratio {ratio:.2}");
}

fn spawn_and_wait() {
    #[expect(clippy::disallowed_methods, reason = "the bare spawn to compare with")]
    let mut command = std::process::Command::new("/bin/true");
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap().wait().unwrap();
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
