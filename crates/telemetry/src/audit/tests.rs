use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};

use super::*;

fn log_at(path: &Path) -> AuditLog {
    AuditLog::open(AuditTarget::File(path.to_owned())).unwrap()
}

fn lines(log: &AuditLog, path: &Path) -> Vec<Value> {
    log.flush();
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_record_is_one_line_of_a_private_file() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("audit.jsonl");
    let log = log_at(&path);
    let hostile = "a\nb\u{1b}[31m\u{2028}\"\\";
    log.write(&json!({"name": hostile, "time": Timestamp(SystemTime::UNIX_EPOCH)}));
    log.write(&json!({"name": short(&"é".repeat(1 << 20))}));
    let records = lines(&log, &path);
    assert_eq!(records[0]["name"], hostile);
    assert_eq!(records[0]["time"], "1970-01-01T00:00:00.000Z");
    let cut = records[1]["name"].as_str().unwrap();
    assert!(cut.len() < 5000 && cut.ends_with("… (2097152 bytes)"), "{}", cut.len());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(log.failures(), 0);
}

#[test]
fn a_rotated_file_is_written_until_the_log_is_reopened() {
    let scratch = tempfile::tempdir().unwrap();
    let [path, old] = ["audit", "audit.1"].map(|name| scratch.path().join(name));
    let log = log_at(&path);
    log.write(&json!(1));
    log.flush();
    std::fs::rename(&path, &old).unwrap();
    log.write(&json!(2));
    log.reopen().unwrap();
    log.write(&json!(3));
    assert_eq!(lines(&log, &old), [json!(1), json!(2)]);
    assert_eq!(lines(&log, &path), [json!(3)]);
    // If the file cannot be reopened, the old one stays in use.
    std::fs::rename(&path, &old).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(log.reopen().is_err());
    log.write(&json!(4));
    assert_eq!(lines(&log, &old), [json!(3), json!(4)]);
}

#[test]
fn targets_that_could_block_the_writer_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    AuditLog::open(AuditTarget::File(path)).unwrap_err();
    let terminal = AuditLog::open(AuditTarget::File("/dev/null".into())).unwrap_err();
    assert_eq!(terminal.to_string(), "cannot open the audit log /dev/null");
}

#[test]
fn a_hanging_log_blocks_only_callers_that_must_wait() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("audit");
    let log = log_at(&path);
    let writer = &log.writer;
    let hanging = writer.hang();
    let refused = writer.write_and_wait(b"{}".to_vec(), Duration::ZERO).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    // The log is known to hang, so callers no longer wait.
    let refused = writer.write_and_wait(b"{}".to_vec(), Duration::MAX).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    let lost = (0..10_000).filter(|_| writer.write(b"{}".to_vec()).is_err()).count();
    assert!(lost > 0 && writer.waiting() > 0, "the queue is bounded");
    assert_eq!(log.failures(), 2 + lost as u64);
    drop(hanging);
    log.flush();
    assert_eq!(writer.waiting(), 0);
    log.write_and_wait(&json!(1)).unwrap();
}

#[test]
fn an_incomplete_record_is_detected_when_the_file_is_opened() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("audit");
    let tear = || {
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"torn\":").unwrap();
    };
    let log = log_at(&path);
    log.write_and_wait(&json!(1)).unwrap();
    tear();
    log.reopen().unwrap();
    log.write_and_wait(&json!(2)).unwrap();
    tear();
    log_at(&path).write_and_wait(&json!(3)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "1\n{\"torn\":\n2\n{\"torn\":\n3\n");
}

#[test]
fn journald_gets_one_datagram_per_record() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("socket");
    let receiver = UnixDatagram::bind(&path).unwrap();
    let target: AuditTarget = format!("journald:{}", path.display()).parse().unwrap();
    let log = AuditLog::open(target).unwrap();
    log.write(&json!({"name": "a\nPRIORITY=0"}));
    let mut buffer = [0; 1024];
    let len = receiver.recv(&mut buffer).unwrap();
    let entry = std::str::from_utf8(&buffer[..len]).unwrap();
    let lines: Vec<_> = entry.lines().collect();
    assert_eq!(lines[3], r#"MESSAGE={"name":"a\nPRIORITY=0"}"#);
    assert_eq!(lines.len(), 4, "{entry}");
    // Nothing reads from the socket: the caller gets an error and does not wait.
    let record = json!("x".repeat(1000));
    let refused = (0..100_000).find_map(|_| log.write_and_wait(&record).err());
    assert!(refused.is_some());
    assert_eq!(log.failures(), 1);
}

#[test]
fn targets_are_parsed_as_they_are_displayed() {
    for text in ["journald", "journald:/run/x", "/var/log/exec-server/audit.jsonl"] {
        assert_eq!(text.parse::<AuditTarget>().unwrap().to_string(), text);
    }
    for text in ["", "audit.log", "journal", "journald:x", "syslog:/x"] {
        assert!(text.parse::<AuditTarget>().is_err(), "{text}");
    }
    let relative = "journald:x".parse::<AuditTarget>().unwrap_err();
    assert_eq!(relative, r#"the socket in "journald:x" is not an absolute path"#);
}
