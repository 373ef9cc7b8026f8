//! If standard error cannot be written to, log lines are lost, but the server keeps running and no
//! process output is lost.

use std::fs::File;

use rustix::process::Signal;

use crate::support::{ServerBuilder, shell};

fn works_and_stops(builder: ServerBuilder) {
    let mut server = builder.arguments(&["--log", "trace"]).start();
    let mut client = server.client();
    for n in 0..50 {
        let end = client.run(&shell(&format!("p{n}"), "echo fine; exit 3"));
        assert_eq!((end.text().as_str(), end.exit_code), ("fine\n", Some(3)));
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_log_on_a_full_disk_does_no_harm() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    works_and_stops(ServerBuilder::new().stderr(full));
}

#[test]
fn a_log_in_a_broken_pipe_does_no_harm() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(reader);
    works_and_stops(ServerBuilder::new().stderr(writer));
}

#[test]
fn a_log_in_a_full_pipe_does_no_harm() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // Full from the start: no line fits.
    let one_page = rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    rustix::io::write(&writer, &vec![b'x'; one_page]).unwrap();
    works_and_stops(ServerBuilder::new().stderr(writer));
    drop(reader);
}
