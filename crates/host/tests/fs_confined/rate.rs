//! Measures the rate of reads under a policy against unconfined reads. Asserts no times.

use std::path::Path;
use std::time::{Duration, Instant};

use exec_server_host::fs::{OpenFile, Symlinks};

use crate::scene::{Scene, User};

const READS: u32 = 100_000;

#[test]
#[ignore = "measures: cargo test --release -p exec-server-host --test fs_confined -- --ignored --nocapture rate"]
fn the_rate_of_small_reads_is_measured() {
    let scene = Scene::new();
    let path = scene.at("work/plain/four_kib");
    std::fs::write(&path, vec![b'x'; 4 << 10]).unwrap();
    for _ in 0..3 {
        let free = reads(&path);
        let confined = scene.confined(&scene.policy(), User::Own, || reads(&path));
        let ratio = free.as_secs_f64() / confined.as_secs_f64();
        println!(
            "4 KiB, open and read: {:?} unconfined, {:?} confined, {ratio:.2} of the rate",
            free / READS,
            confined / READS
        );
    }
}

fn reads(path: &Path) -> Duration {
    let begun = Instant::now();
    for _ in 0..READS {
        let file = OpenFile::open(path, Symlinks::Follow).unwrap();
        assert_eq!(file.read_to_end(5_000).unwrap().len(), 4 << 10);
    }
    begun.elapsed()
}
