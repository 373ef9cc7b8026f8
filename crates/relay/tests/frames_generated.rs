//! Checks that `src/frame/generated.rs` is up to date with `proto/relay.proto`. To regenerate it:
//! `REGENERATE=1 cargo test -p exec-server-relay --test frames_generated`.

use std::{env, fs, path::Path};

use prost_build::{Config, Module};

const PACKAGE: &str = "codex.exec_server.relay.v1";

#[test]
fn the_generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let generated = generate(&root.join("proto"));
    let checked_in = root.join("src/frame/generated.rs");
    if env::var_os("REGENERATE").is_some() {
        fs::write(&checked_in, &generated).unwrap();
    }
    assert!(
        fs::read_to_string(&checked_in).unwrap() == generated,
        "src/frame/generated.rs differs from proto/relay.proto; run this test with REGENERATE=1"
    );
}

fn generate(directory: &Path) -> String {
    let files = protox::compile(["relay.proto"], [directory]).expect("the schema is valid");
    let module = Module::from_protobuf_package_name(PACKAGE);
    let requests = files.file.into_iter().map(|file| (module.clone(), file)).collect();
    // Payloads are slices of the received message, not copies.
    let mut generated =
        Config::new().bytes(["."]).generate(requests).expect("the schema generates code");
    generated.remove(&module).expect("the package has code")
}
