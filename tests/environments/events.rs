//! The events of a process, without loss.

use exec_server::protocol::{ErrorKind, SignalName, TerminalSize, TerminateMode};

use super::*;
use crate::support::{program, shell};

in_every_environment! {
    output_is_in_order_and_every_event_has_its_number,
    exit_codes_are_exact,
    the_first_subscriber_misses_no_output,
    a_late_subscriber_gets_the_same_events,
    a_late_subscriber_gets_the_gap,
    reads_return_the_whole_output,
    a_terminal_can_be_resized,
    signals_arrive,
    terminate_ends_a_process_once,
    a_slow_subscriber_loses_no_output_and_delays_no_process,
    an_id_cannot_be_used_twice,
}

async fn output_is_in_order_and_every_event_has_its_number(backend: Backend) {
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; echo e$i >&2; done";
    let process = start(&backend, &shell("p", script)).await;
    assert_eq!(process.process_id(), "p");
    let story = Story::of(process.subscribe_events()).await;
    assert!(story.is_contiguous(), "{story:?}");
    assert_eq!(story.stdout, b"1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    assert_eq!(story.stderr, b"e1\ne2\ne3\ne4\ne5\ne6\ne7\ne8\ne9\n");
    assert_eq!(story.exit_code, Some(0));
    let next = story.seqs.len() as u64 + 1;
    process.subscribe_wake().wait_for(|seq| *seq == next).await.unwrap();
}

async fn exit_codes_are_exact(backend: Backend) {
    for (number, (script, code, signal)) in
        [("exit 0", 0, None), ("exit 255", 255, None), ("kill -9 $$", 137, Some(9))]
            .into_iter()
            .enumerate()
    {
        let process = start(&backend, &shell(&number.to_string(), script)).await;
        let exit = process.wait().await.unwrap();
        assert_eq!((exit.exit_code, exit.details.unwrap().signal), (code, signal), "{script}");
        assert!(!exit.sandbox_denied);
    }
}

async fn the_first_subscriber_misses_no_output(backend: Backend) {
    const BYTES: usize = 5 << 20;
    let directory = tempfile::tempdir().unwrap();
    let [go, done] = ["go", "done"].map(|name| directory.path().join(name).display().to_string());
    let until = |file: &str| format!("until test -e {file}; do sleep 0.01; done");
    let script = format!("{}; head -c {BYTES} /dev/zero; touch {done}", until(&go));
    let process = start(&backend, &shell("p", &script)).await;
    std::fs::write(&go, "").unwrap();
    start(&backend, &shell("other", &until(&done))).await.wait().await.unwrap();
    let story = Story::of(process.subscribe_events()).await;
    assert_eq!((story.stdout.len(), story.lost), (BYTES, 0));
}

async fn a_late_subscriber_gets_the_same_events(backend: Backend) {
    let process = start(&backend, &shell("p", "echo one; echo two >&2; exit 3")).await;
    let live = Story::of(process.subscribe_events()).await;
    let late = Story::of(process.subscribe_events()).await;
    assert_eq!(live, late);
    assert!(late.is_contiguous());
}

async fn a_late_subscriber_gets_the_gap(backend: Backend) {
    const BYTES: u64 = 5 << 20;
    let process = start(&backend, &shell("p", &format!("head -c {BYTES} /dev/zero"))).await;
    process.wait().await.unwrap();
    let late = Story::of(process.subscribe_events()).await;
    assert!(late.lost > 0);
    assert_eq!(late.lost + late.stdout.len() as u64, BYTES);
    assert_eq!(late.exit_code, Some(0));
}

async fn reads_return_the_whole_output(backend: Backend) {
    let process = start(&backend, &shell("p", "seq 20000; exit 4")).await;
    let (mut after, mut output) = (0, Vec::new());
    let last = loop {
        let read = process.read(Some(after), Some(4096), Some(HANG)).await.unwrap();
        assert_eq!((read.dropped_bytes, &read.failure), (0, &None));
        for chunk in &read.chunks {
            assert!(chunk.seq > after);
            output.extend_from_slice(&chunk.chunk);
        }
        after = read.next_seq - 1;
        if read.closed && read.chunks.is_empty() {
            break read;
        }
    };
    assert!((last.exited, last.exit_code) == (true, Some(4)));
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert!(output == expected.as_bytes(), "{} bytes", output.len());
}

async fn a_terminal_can_be_resized(backend: Backend) {
    let script = "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 0.05; done";
    let size = TerminalSize { rows: 11, cols: 22 };
    let mut params = shell("tty", script).tty().typed();
    params.size = Some(size);
    let process = backend.start(params).await.unwrap();
    let mut events = process.subscribe_events();
    until_written(&mut events, "11 22").await;
    process.resize(TerminalSize { rows: 33, cols: 44 }).await.unwrap();
    until_written(&mut events, "33 44").await;

    let piped = start(&backend, &shell("pipe", "read x").with_stdin()).await;
    let error = piped.resize(size).await.unwrap_err().to_string();
    assert!(error.contains("has no terminal to resize"), "{error}");
    piped.terminate(TerminateMode::Force).await.unwrap();
}

async fn signals_arrive(backend: Backend) {
    let script = "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done";
    let process = start(&backend, &shell("p", script)).await;
    let mut events = process.subscribe_events();
    until_written(&mut events, "ready").await;
    process.signal(SignalName::Interrupt).await.unwrap();
    until_written(&mut events, "caught").await;
    assert_eq!(process.wait().await.unwrap().exit_code, 6);
    process.signal(SignalName::Kill).await.unwrap();
}

async fn terminate_ends_a_process_once(backend: Backend) {
    let process = start(&backend, &program("p", &["sleep", "1000"])).await;
    assert!(process.terminate(TerminateMode::Force).await.unwrap());
    assert_eq!(process.wait().await.unwrap().exit_code, 137);
    assert!(!process.terminate(TerminateMode::Force).await.unwrap());

    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let graceful = start(&backend, &shell("q", script)).await;
    until_written(&mut graceful.subscribe_events(), "ready").await;
    let mode = TerminateMode::Graceful { timeout_ms: 60_000 };
    assert!(graceful.terminate(mode).await.unwrap());
    assert_eq!(graceful.wait().await.unwrap().exit_code, 9);
}

async fn a_slow_subscriber_loses_no_output_and_delays_no_process(backend: Backend) {
    const BYTES: usize = 20 << 20;
    let directory = tempfile::tempdir().unwrap();
    let done = directory.path().join("done").display().to_string();
    let script = format!("yes 0123456789abcde | head -c {BYTES}; touch {done}");
    let process = start(&backend, &shell("slow", &script)).await;
    let events = process.subscribe_events();
    // When the other process ends, the first has written everything and the test has read nothing.
    let script = format!("until test -e {done}; do sleep 0.01; done; echo seen");
    let other = start(&backend, &shell("other", &script)).await;
    assert_eq!(other.output().await.unwrap().stdout.complete(), Some(&b"seen\n"[..]));

    let story = Story::of(events).await;
    assert!(story.is_contiguous() && story.lost == 0);
    assert_eq!(story.stdout.len(), BYTES);
    assert!(story.stdout.chunks(16).all(|line| line == b"0123456789abcde\n"));
    assert_eq!(story.exit_code, Some(0));
}

async fn an_id_cannot_be_used_twice(backend: Backend) {
    let first = start(&backend, &shell("p", "read x; echo $x").with_stdin()).await;
    let error = backend.start(shell("p", "true").typed()).await.unwrap_err();
    assert_eq!(error.kind(), Some(&ErrorKind::DuplicateProcess));
    assert!(error.to_string().contains("process \"p\" already exists in this session"), "{error}");
    first.write("still\n".into()).await.unwrap();
    assert_eq!(first.output().await.unwrap().stdout.complete(), Some(&b"still\n"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_the_same_everywhere() {
    let starts = [
        program("missing", &["/no/such/program"]),
        program("missing", &["no-such-program-in-path"]),
        program("directory", &["/tmp"]),
        program("empty", &[]),
        shell("cwd", "true").with("cwd", "file:///no/such/directory"),
        shell("sandbox", "true").with("sandbox", serde_json::json!({"type": "unheard-of"})),
        shell(&"x".repeat(2000), "true"),
    ];
    let mut refusals = Vec::new();
    for site in Site::every() {
        let backend = site.backend();
        let mut of_this_site = Vec::new();
        for refused in &starts {
            let error = backend.start(refused.typed()).await.unwrap_err();
            of_this_site.push((error.to_string(), error.kind().cloned()));
        }
        assert_eq!(of_this_site[0].1, Some(ErrorKind::ProgramNotFound));
        refusals.push(of_this_site);
    }
    assert_eq!(refusals[0], refusals[1]);
    assert_eq!(refusals[0], refusals[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn discarded_output_is_a_declared_gap() {
    const BYTES: u64 = 8 << 20;
    for site in Site::every_without_spill() {
        site.run(async |backend| {
            let directory = tempfile::tempdir().unwrap();
            let done = directory.path().join("done").display().to_string();
            let script = format!("head -c {BYTES} /dev/zero; touch {done}");
            let process = start(&backend, &shell("p", &script).with("onFull", "discard")).await;
            let events = process.subscribe_events();
            let script = format!("until test -e {done}; do sleep 0.01; done");
            start(&backend, &shell("other", &script)).await.wait().await.unwrap();
            let story = Story::of(events).await;
            assert!(story.lost > 0);
            // A gap may also count bytes that have arrived: the server may not know which did.
            assert!(story.lost + story.stdout.len() as u64 >= BYTES, "{story:?}");
            assert_eq!(story.exit_code, Some(0));
        })
        .await;
    }
}
