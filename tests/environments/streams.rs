//! Files in blocks and as streams.

use exec_server::ExecutorFileSystem as _;
use exec_server::protocol::{
    ErrorKind, FsCreateParams, FsOpenParams, FsReadDirectoryParams, FsReadFileParams,
    MAX_BLOCK_BYTES,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

in_every_environment! {
    whole:
    ten_mebibytes_are_written_and_read,
    a_file_in_proc_is_read_to_its_end,
    an_open_file_is_not_affected_by_a_rename,
    a_new_file_is_invisible_until_it_is_committed,
    an_uncommitted_file_leaves_nothing,
    a_commit_is_refused_if_the_file_was_created_in_the_meantime,
    dropped_handles_are_closed,
}

fn opening(path: PathUri) -> FsOpenParams {
    FsOpenParams {
        path,
        handle_id: "ignored".into(),
        follow_symlinks: None,
        details: false,
        sandbox: None,
    }
}

fn creating(path: PathUri) -> FsCreateParams {
    FsCreateParams::new(path, "ignored")
}

async fn ten_mebibytes_are_written_and_read(environment: Environment) {
    let place = Place::new();
    let content = pattern(10 << 20);
    let mut writer = environment.write_file_stream(creating(place.uri("file"))).await.unwrap();
    writer.write_all(&content).await.unwrap();
    writer.shutdown().await.unwrap();
    assert_eq!(writer.committed().unwrap().size, Some(content.len() as u64));
    assert!(place.read("file") == content);

    let mut reader = environment.read_file_stream(opening(place.uri("file"))).await.unwrap();
    assert_eq!(reader.metadata().size, content.len() as u64);
    let mut read = Vec::new();
    reader.read_to_end(&mut read).await.unwrap();
    assert!(read == content);
}

async fn a_file_in_proc_is_read_to_its_end(environment: Environment) {
    let path = PathUri::from_path("/proc/self/status").unwrap();
    let mut reader = environment.read_file_stream(opening(path.clone())).await.unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("Name:") && text.contains("nonvoluntary_ctxt_switches"), "{text}");
    let whole = environment.read_file(FsReadFileParams::new(path)).await.unwrap();
    assert!(whole.starts_with(b"Name:"));
}

async fn an_open_file_is_not_affected_by_a_rename(environment: Environment) {
    let place = Place::new();
    place.write("file", "old content");
    let file = environment.open(opening(place.uri("file"))).await.unwrap();
    assert_eq!(file.metadata().size, 11);
    place.write("other", "new");
    std::fs::rename(place.path("other"), place.path("file")).unwrap();
    let block = file.read_block(4, MAX_BLOCK_BYTES).await.unwrap();
    assert_eq!((&block.chunk[..], block.eof), (&b"content"[..], true));
    let block = file.read_block(0, 3).await.unwrap();
    assert_eq!((&block.chunk[..], block.eof), (&b"old"[..], false));
    let block = file.read_block(1 << 40, 3).await.unwrap();
    assert_eq!((block.chunk.len(), block.eof), (0, true));
    file.read_block(0, MAX_BLOCK_BYTES + 1).await.unwrap_err();
}

async fn a_new_file_is_invisible_until_it_is_committed(environment: Environment) {
    let place = Place::new();
    place.write("file", "old");
    let new = environment.create(creating(place.uri("file"))).await.unwrap();
    assert_eq!(new.written(), 0);
    // Blocks may be written in any order.
    new.write_block(3, "new".into()).await.unwrap();
    new.write_block(0, "all".into()).await.unwrap();
    assert_eq!(place.read("file"), b"old");
    let committed = new.commit().await.unwrap();
    assert!(committed.committed && committed.size == Some(6));
    assert_eq!(place.read("file"), b"allnew");
}

/// Waits until a directory contains only these names: the temporary file of a dropped handle is
/// removed in the background.
async fn until_only(environment: &Environment, place: &Place, names: &[&str]) {
    let params = FsReadDirectoryParams::new(place.uri(""));
    loop {
        let entries = environment.read_directory(params.clone()).await.unwrap();
        if entries.iter().all(|entry| names.contains(&entry.file_name.as_str())) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn an_uncommitted_file_leaves_nothing(environment: Environment) {
    let place = Place::new();
    place.write("file", "old");
    let new = environment.create(creating(place.uri("file"))).await.unwrap();
    new.write_block(0, "new".into()).await.unwrap();
    new.discard().await.unwrap();
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 1);

    let new = environment.create(creating(place.uri("file"))).await.unwrap();
    new.write_block(0, "new".into()).await.unwrap();
    drop(new);
    until_only(&environment, &place, &["file"]).await;

    let mut writer = environment.write_file_stream(creating(place.uri("file"))).await.unwrap();
    writer.write_all(&pattern(3 << 20)).await.unwrap();
    drop(writer);
    until_only(&environment, &place, &["file"]).await;
    assert_eq!(place.read("file"), b"old");
}

async fn a_commit_is_refused_if_the_file_was_created_in_the_meantime(environment: Environment) {
    let place = Place::new();
    let params = FsCreateParams { create_new: true, ..creating(place.uri("file")) };
    let mut writer = environment.write_file_stream(params.clone()).await.unwrap();
    writer.write_all(b"mine").await.unwrap();
    place.write("file", "theirs");
    let error = writer.shutdown().await.unwrap_err();
    let source = error.get_ref().and_then(|source| source.downcast_ref());
    let source: &exec_server::ExecServerError = source.expect("the reason is kept");
    assert_eq!(source.kind(), Some(&ErrorKind::Conflict), "{error}");
    drop(writer);
    until_only(&environment, &place, &["file"]).await;
    assert_eq!(place.read("file"), b"theirs");
    let error = environment.create(params).await.unwrap_err();
    assert_eq!(error.kind(), Some(&ErrorKind::Conflict), "{error}");
}

/// Opens more handles than may be open at once.
async fn dropped_handles_are_closed(environment: Environment) {
    let place = Place::new();
    place.write("file", "x");
    for _ in 0..300 {
        let file = environment.open(opening(place.uri("file"))).await.unwrap();
        assert_eq!(&*file.read_block(0, 1).await.unwrap().chunk.into_bytes(), b"x");
    }
}
