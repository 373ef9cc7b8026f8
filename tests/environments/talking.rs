//! Standard input, and processes as pipes.

use bytes::Bytes;
use exec_server::process::{StdinWriter, StdoutReader};
use exec_server::protocol::WriteStatus;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use super::*;
use crate::support::{program, shell};

in_every_environment! {
    input_arrives_in_order_and_ends,
    a_write_without_stdin_gets_a_status,
    communicate_does_not_deadlock,
    unread_input_is_not_an_error,
    lines_are_exchanged_both_ways,
    megabytes_pass_both_ways_at_once,
    a_write_to_closed_stdin_is_a_broken_pipe,
}

async fn input_arrives_in_order_and_ends(backend: Backend) {
    let process = start(&backend, &program("p", &["cat"]).with_stdin()).await;
    for number in 0..100 {
        let status = process.write(format!("{number} ").into()).await.unwrap();
        assert_eq!(status, WriteStatus::Accepted);
    }
    assert_eq!(process.close_stdin().await.unwrap(), WriteStatus::Accepted);
    let story = Story::of(process.subscribe_events()).await;
    let expected: String = (0..100).map(|number| format!("{number} ")).collect();
    assert_eq!(String::from_utf8(story.stdout).unwrap(), expected);
    assert_eq!(process.write("late".into()).await.unwrap(), WriteStatus::StdinClosed);
}

async fn a_write_without_stdin_gets_a_status(backend: Backend) {
    let process = start(&backend, &program("p", &["sleep", "1000"])).await;
    assert_eq!(process.write("x".into()).await.unwrap(), WriteStatus::StdinClosed);
    assert_eq!(process.close_stdin().await.unwrap(), WriteStatus::StdinClosed);
}

async fn communicate_does_not_deadlock(backend: Backend) {
    const BYTES: usize = 12 << 20;
    let script = format!("head -c {BYTES} /dev/zero; wc -c >&2");
    let process = start(&backend, &shell("p", &script).with_stdin()).await;
    let output = process.communicate(vec![b'x'; BYTES]).await.unwrap();
    assert_eq!(output.stderr.to_text().trim(), BYTES.to_string());
    assert_eq!(output.stdout.len() as u64 + output.stdout.omitted_bytes, BYTES as u64);
    assert_eq!(output.stdout.len(), exec_server::process::DEFAULT_OUTPUT_BOUND);
    assert_eq!((output.exit.exit_code, output.missed_bytes), (0, 0));
}

async fn unread_input_is_not_an_error(backend: Backend) {
    for (id, script) in [("closes", "exec <&-; echo done"), ("exits", "echo done")] {
        let process = start(&backend, &shell(id, script).with_stdin()).await;
        let output = process.communicate(vec![b'x'; 12 << 20]).await.unwrap();
        assert_eq!(output.stdout.complete(), Some(&b"done\n"[..]), "{script}");
    }
}

async fn lines_are_exchanged_both_ways(backend: Backend) {
    let script = "while read line; do echo \"got $line\"; done; echo bye";
    let process = start(&backend, &shell("p", script).with_stdin()).await;
    let mut stdin = StdinWriter::new(Arc::clone(&process));
    let stdout = StdoutReader::new(&*process, OutputStream::Stdout);
    let mut lines = BufReader::new(stdout).lines();
    for number in 0..50 {
        stdin.write_all(format!("{number}\n").as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
        assert_eq!(lines.next_line().await.unwrap(), Some(format!("got {number}")));
    }
    stdin.shutdown().await.unwrap();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("bye"));
    assert_eq!(lines.next_line().await.unwrap(), None);
}

async fn megabytes_pass_both_ways_at_once(backend: Backend) {
    let process = start(&backend, &shell("p", "tee /dev/stderr").with_stdin()).await;
    let data: Bytes = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let mut stdin = StdinWriter::new(Arc::clone(&process));
    let mut readers = [OutputStream::Stdout, OutputStream::Stderr]
        .map(|stream| StdoutReader::new(&*process, stream));
    let [stdout, stderr] = &mut readers;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let write = async {
        stdin.write_all(&data).await?;
        stdin.shutdown().await
    };
    let (written, read_out, read_err) =
        tokio::join!(write, stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
    written.unwrap();
    assert_eq!((read_out.unwrap(), read_err.unwrap()), (data.len(), data.len()));
    assert!(out == data && err == data);
}

async fn a_write_to_closed_stdin_is_a_broken_pipe(backend: Backend) {
    let process =
        start(&backend, &shell("p", "exec <&-; echo closed; sleep 1000").with_stdin()).await;
    until_written(&mut process.subscribe_events(), "closed").await;
    let mut stdin = StdinWriter::new(process);
    let error = loop {
        if let Err(error) = stdin.write_all(&[b'x'; 1000]).await {
            break error;
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}
