use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::super::test_support::connected;
use super::*;

struct Pumped {
    program: TcpStream,
    server: TcpStream,
    traffic: Arc<Traffic>,
    pump: JoinSet<()>,
}

async fn pumped() -> Pumped {
    let (program, inside) = connected().await;
    let (outside, server) = connected().await;
    let traffic = Arc::new(Traffic::default());
    let mut tasks = JoinSet::new();
    let counted = Arc::clone(&traffic);
    tasks.spawn(async move { pump(inside, outside, &counted).await });
    Pumped { program, server, traffic, pump: tasks }
}

#[tokio::test]
async fn bytes_pass_and_are_counted() {
    let Pumped { mut program, mut server, traffic, mut pump } = pumped().await;
    let sent: Vec<u8> = (0..3 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    let mut received = Vec::new();
    let (up, down) = tokio::join!(
        async {
            program.write_all(&sent).await?;
            program.shutdown().await
        },
        server.read_to_end(&mut received),
    );
    up.unwrap();
    down.unwrap();
    assert!(received == sent);
    server.write_all(b"answer").await.unwrap();
    drop(server);
    let mut answer = Vec::new();
    program.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"answer");
    pump.join_next().await.unwrap().unwrap();
    assert_eq!((traffic.bytes_up(), traffic.bytes_down()), (3 << 20, 6));
}

#[tokio::test]
async fn ending_one_direction_leaves_the_other_open() {
    let Pumped { mut program, mut server, traffic: _, pump: _pump } = pumped().await;
    server.shutdown().await.unwrap();
    assert_eq!(program.read(&mut [0; 8]).await.unwrap(), 0);
    program.write_all(b"more").await.unwrap();
    let mut received = [0; 4];
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"more");
}

#[tokio::test]
async fn a_reset_is_passed_on() {
    let Pumped { program, mut server, traffic: _, pump: _pump } = pumped().await;
    reset(program);
    let error = server.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

    let Pumped { mut program, server, traffic: _, pump: _pump } = pumped().await;
    reset(server);
    let error = program.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_reset_after_the_end_of_a_direction_is_passed_on() {
    let Pumped { mut program, mut server, traffic: _, pump: _pump } = pumped().await;
    program.shutdown().await.unwrap();
    assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
    reset(program);
    // Returns only after the reset: the end of a direction alone is not an error.
    let error = wait_for_error(&server).await;
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}
