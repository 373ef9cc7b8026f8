//! Files and HTTP when the connection to the server is lost.

use std::net::SocketAddr;

use exec_server::protocol::{
    FsCreateParams, FsGetMetadataParams, FsOpenParams, FsReadFileParams, FsWatchParams,
};
use exec_server::{ExecServerError, ExecutorFileSystem as _, HttpClient as _};
use exec_server_test_support::{Cut, FaultProxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::http::WebServer;
use super::*;

/// Starts a server behind a bad network.
async fn far_away() -> (Environment, FaultProxy, Server) {
    let server = Server::start();
    let address: SocketAddr = server.url().trim_start_matches("ws://").parse().unwrap();
    let proxy = FaultProxy::start(address).await;
    let remote = RemoteServer::at(proxy.url()).unwrap();
    (Environment::remote("far", remote), proxy, server)
}

fn opening(path: PathUri) -> FsOpenParams {
    FsOpenParams {
        path,
        handle_id: String::new(),
        follow_symlinks: None,
        details: false,
        sandbox: None,
    }
}

fn is_interrupted(error: &std::io::Error) -> bool {
    let source = error.get_ref().and_then(|source| source.downcast_ref());
    matches!(source, Some(ExecServerError::Interrupted { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_continue_after_a_cut() {
    let (environment, proxy, _server) = far_away().await;
    let place = Place::new();
    place.write("file", "x");
    let path = place.uri("file");
    for how in Cut::ALL {
        assert_eq!(environment.read_file(FsReadFileParams::new(path.clone())).await.unwrap(), "x");
        proxy.cut(how).await;
        let params =
            FsGetMetadataParams { path: path.clone(), follow_symlinks: None, sandbox: None };
        assert_eq!(environment.metadata(params).await.unwrap().size, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_continues_after_a_cut_and_requests_a_rescan() {
    let (environment, proxy, _server) = far_away().await;
    let place = Place::new();
    let path = place.uri("");
    let params = FsWatchParams { path, watch_id: String::new(), recursive: true, sandbox: None };
    let mut watch = environment.watch(params).await.unwrap();
    for round in 0..3 {
        proxy.cut(Cut::Rst).await;
        place.write(&format!("during {round}"), "x");
        assert!(watch.next().await.unwrap().unwrap().rescan);
        let after = format!("after {round}");
        place.write(&after, "x");
        loop {
            let told = watch.next().await.unwrap().unwrap();
            if told.changes.iter().any(|change| change.path.as_path().ends_with(&after)) {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_at_once_with_an_error() {
    let (environment, proxy, _server) = far_away().await;
    let place = Place::new();
    place.write("file", pattern(20 << 20));
    let web = WebServer::start().await;
    let mut reader = environment.read_file_stream(opening(place.uri("file"))).await.unwrap();
    reader.read_u8().await.unwrap();
    let create = FsCreateParams::new(place.uri("new"), "");
    let mut writer = environment.write_file_stream(create).await.unwrap();
    writer.write_all(b"begun").await.unwrap();
    writer.flush().await.unwrap();
    let (_, mut body) = environment.request_streamed(web.get("/stream")).await.unwrap();
    web.push("begun").await;
    body.next().await.unwrap().unwrap();

    // No connection succeeds: a stream that waited for a new one would hang.
    proxy.refuse();
    proxy.cut(Cut::Rst).await;
    let error = body.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ExecServerError::Interrupted { .. }), "{error}");
    assert!(body.next().await.is_none());
    assert!(is_interrupted(&reader.read_to_end(&mut Vec::new()).await.unwrap_err()));
    assert!(is_interrupted(&writer.shutdown().await.unwrap_err()));

    proxy.resume();
    let file = environment.read_file(FsReadFileParams::new(place.uri("file"))).await.unwrap();
    assert_eq!(file.len(), 20 << 20);
    // The server cancels the download when the connection ends.
    web.body_ended.notified().await;
    let (_, mut body) = environment.request_streamed(web.get("/stream")).await.unwrap();
    web.push("again").await;
    assert!(body.next().await.unwrap().is_ok());
    assert!(!place.path("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_with_a_key_continues_where_it_stopped() {
    let (environment, proxy, _server) = far_away().await;
    let place = Place::new();
    let content = pattern(12 << 20);
    let params = FsCreateParams {
        resume_key: Some("attempt-1".into()),
        ..FsCreateParams::new(place.uri("file"), "")
    };
    let mut writer = environment.write_file_stream(params.clone()).await.unwrap();
    writer.write_all(&content[..7 << 20]).await.unwrap();
    writer.flush().await.unwrap();
    proxy.cut(Cut::Rst).await;
    assert!(writer.shutdown().await.is_err());
    drop(writer);

    let mut writer = loop {
        match environment.write_file_stream(params.clone()).await {
            Ok(writer) => break writer,
            // The server may not have noticed the end of the old connection.
            Err(error) => assert!(matches!(error, ExecServerError::Server(_)), "{error}"),
        }
    };
    let position = usize::try_from(writer.position()).unwrap();
    assert_eq!(position, 3 << 20, "the last position that is certain");
    writer.write_all(&content[position..]).await.unwrap();
    writer.shutdown().await.unwrap();
    assert!(place.read("file") == content);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 1);
}
