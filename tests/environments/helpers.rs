//! Collecting output, as a whole and in windows.

use std::time::Duration;

use exec_server::process::{WindowEnd, WindowOptions, WindowedOutput};
use exec_server::protocol::TerminateMode;

use super::*;
use crate::support::{program, shell};

in_every_environment! {
    streams_are_collected_separately,
    output_beyond_the_bound_is_counted,
    windows_continue_where_the_last_one_ended,
    a_flood_does_not_hold_a_window_open,
    info_describes_the_environment,
}

async fn streams_are_collected_separately(backend: Backend) {
    let process = start(&backend, &shell("p", "echo out; echo err >&2; exit 8")).await;
    let output = process.output().await.unwrap();
    assert_eq!(output.stdout.complete(), Some(&b"out\n"[..]));
    assert_eq!(output.stderr.complete(), Some(&b"err\n"[..]));
    assert_eq!(output.exit.exit_code, 8);

    let terminal = start(&backend, &shell("t", "echo out; echo err >&2").tty()).await;
    let output = terminal.output().await.unwrap();
    assert_eq!(output.terminal.complete(), Some(&b"out\r\nerr\r\n"[..]));
}

async fn output_beyond_the_bound_is_counted(backend: Backend) {
    let process = start(&backend, &program("p", &["seq", "100000"])).await;
    let output = process.output_within(20).await.unwrap();
    assert_eq!(output.stdout.head, b"1\n2\n3\n4\n5\n");
    assert_eq!(output.stdout.tail, b"99\n100000\n");
    assert_eq!(output.stdout.omitted_bytes, 588_895 - 20);
}

async fn windows_continue_where_the_last_one_ended(backend: Backend) {
    let script = "echo one; read x; echo two $x; read x; echo three $x; exit 2";
    let process = start(&backend, &shell("p", script).with_stdin()).await;
    let mut windows = WindowedOutput::new(&*process);
    let window = WindowOptions {
        deadline: HANG,
        quiet: Some(Duration::from_millis(100)),
        ..WindowOptions::default()
    };
    let first = windows.collect(window).await;
    assert_eq!(first.output.to_text(), "one\n");
    assert!(matches!(first.end, WindowEnd::Quiet) && first.exit.is_none());
    process.write("a\n".into()).await.unwrap();
    let second = windows.collect(window).await;
    assert_eq!(second.output.to_text(), "two a\n");
    process.write("b\n".into()).await.unwrap();
    let third = windows.collect(WindowOptions { quiet: None, ..window }).await;
    assert_eq!(third.output.to_text(), "three b\n");
    assert!(matches!(third.end, WindowEnd::Closed));
    assert_eq!(third.exit.unwrap().exit_code, 2);
}

async fn a_flood_does_not_hold_a_window_open(backend: Backend) {
    let process = start(&backend, &program("p", &["yes"])).await;
    let mut windows = WindowedOutput::new(&*process);
    let quiet = Some(Duration::from_secs(1));
    let window = WindowOptions { deadline: Duration::from_millis(200), quiet, max_output: 1000 };
    for _ in 0..2 {
        let flooded = windows.collect(window).await;
        assert!(matches!(flooded.end, WindowEnd::Deadline));
        assert!(flooded.output.len() <= 1000);
    }
    process.terminate(TerminateMode::Force).await.unwrap();
}

async fn info_describes_the_environment(backend: Backend) {
    let info = backend.info().await.unwrap();
    assert!(info.shell.path.starts_with('/'));
    assert!(info.process_teardown.keeper, "processes run under a keeper");
}
