//! Checks that the rendezvous is built without code that could read the traffic that it routes.

use std::path::Path;

/// A workspace build enables the relay's feature `noise` for other crates, so it would not fail if
/// this crate used the Noise channel.
#[test]
fn no_code_of_the_crate_names_the_noise_channel() {
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("noise::"), "{} names the Noise channel", path.display());
        }
    }
    assert!(files > 10);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test may run cargo")]
fn no_cryptography_of_the_relay_is_in_the_crate() {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--package", "exec-server-rendezvous", "--edges", "normal"])
        .args(["--prefix", "none", "--offline", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let crates: Vec<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"exec-server-relay"), "{tree}");
    // `curve25519-dalek` is not listed: the NATS client signs with it.
    for secret in ["clatter", "ml-kem", "x25519-dalek", "aes-gcm"] {
        assert!(!crates.contains(&secret), "{secret} is in {tree}");
    }
}
