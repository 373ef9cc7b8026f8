//! Common programs reach the hosts that the policy allows, with and without proxies, and no others.

use std::path::Path;
use std::process::Command;

use exec_server_test_support::skipped;
use serde_json::json;

use super::world::{World, allow};
use crate::support::{command, eventually, run_command};

/// A use of the network by a program.
struct Use {
    name: &'static str,
    needs: &'static [&'static str],
    /// Rules that suffice.
    allow: &'static [&'static str],
    /// Run by bash.
    script: &'static str,
    /// Contained in the output of a successful run.
    expected: &'static str,
}

const HTTP: &[&str] = &["allowed.test"];

const fn using(name: &'static str, needs: &'static [&'static str], script: &'static str) -> Use {
    Use { name, needs, allow: HTTP, script, expected: "reached" }
}

impl Use {
    const fn allowing(self, allow: &'static [&'static str]) -> Self {
        Self { allow, ..self }
    }

    const fn expecting(self, expected: &'static str) -> Self {
        Self { expected, ..self }
    }
}

const USES: &[Use] = &[
    using("curl through the proxy", &["curl"], "curl -s http://allowed.test/"),
    using("curl", &["curl"], "curl -s --noproxy '*' http://allowed.test/"),
    using(
        "curl with TLS through the proxy",
        &["curl"],
        "curl -sv --cacert $WORLD/authority.pem https://allowed.test/",
    ),
    using(
        "curl with TLS",
        &["curl"],
        "curl -s --noproxy '*' --cacert $WORLD/authority.pem https://allowed.test/",
    ),
    using("curl by SOCKS5", &["curl"], "curl -s --proxy $ALL_PROXY http://allowed.test/"),
    using("curl to a named port", &["curl"], "curl -s --noproxy '*' http://allowed.test:8080/")
        .allowing(&["allowed.test:8080"]),
    using("curl to a literal", &["curl"], "curl -s --noproxy '*' http://93.184.216.34/")
        .allowing(&["93.184.216.34"]),
    using("curl to IPv6", &["curl"], "curl -sg --noproxy '*' http://six.test/")
        .allowing(&["six.test"]),
    using("curl to a private literal", &["curl"], "curl -s --noproxy '*' http://10.0.0.5/")
        .allowing(&["10.0.0.5"]),
    using("curl to a subdomain", &["curl"], "curl -s --noproxy '*' http://SUB.allowed.test./")
        .allowing(&["*.allowed.test"]),
    using("curl to another port through the proxy", &["curl"], "curl -s http://allowed.test:8080/"),
    using("wget", &["wget"], "wget --tries=1 -qO - --no-proxy http://allowed.test/"),
    using("wget through the proxy", &["wget"], "wget --tries=1 -qO - http://allowed.test/"),
    using(
        "Python without the proxy",
        &["python3"],
        "python3 -c 'import urllib.request as u
print(u.build_opener(u.ProxyHandler({})).open(\"http://allowed.test/\").read())'",
    ),
    using(
        "Python through the proxy",
        &["python3"],
        "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://allowed.test/\").read())'",
    ),
    using(
        "Python with TLS",
        &["python3"],
        "SSL_CERT_FILE=$WORLD/authority.pem python3 -c 'import urllib.request as u
print(u.build_opener(u.ProxyHandler({})).open(\"https://allowed.test/\").read())'",
    ),
    using(
        "a request and the end of input",
        &["python3"],
        "python3 -c 'import socket
s = socket.create_connection((\"127.0.0.1\", 43128))
s.sendall(b\"GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n\")
s.shutdown(socket.SHUT_WR)
print(s.makefile().read())'",
    ),
    using(
        "node",
        &["node"],
        "node -e 'require(\"http\").get({host: \"allowed.test\", agent: new (require(\"http\").Agent)()},
r => r.on(\"data\", d => console.log(d + \"\")))'",
    ),
    using(
        "node with fetch",
        &["node"],
        "node -e 'fetch(\"http://allowed.test/\").then(r => r.text()).then(console.log)'",
    ),
    using(
        "node with TLS",
        &["node"],
        "NODE_EXTRA_CA_CERTS=$WORLD/authority.pem node -e '
require(\"https\").get(\"https://allowed.test/\", r => r.on(\"data\", d => console.log(d + \"\")))'",
    ),
    using(
        "perl",
        &["perl"],
        "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(PeerAddr => \"allowed.test:80\") or die;
print $s \"GET / HTTP/1.0\\r\\n\\r\\n\"; print <$s>'",
    ),
    using(
        "bash",
        &["bash"],
        "exec 3<> /dev/tcp/allowed.test/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3",
    ),
    using("busybox", &["busybox"], "busybox wget -qO - http://allowed.test/"),
    using(
        "git over ssh",
        &["git", "ssh", "$WORLD/host_key"],
        "cd $(mktemp -d) && export GIT_SSH_COMMAND=\"ssh -F none -i $WORLD/user_key \
         -o UserKnownHostsFile=$WORLD/known_hosts\" \
         && git clone -q git@allowed.test:$WORLD/www/git/library.git 2>&1 && cat library/file",
    )
    .allowing(&["allowed.test:22"])
    .expecting("of the library"),
    using(
        "psql",
        &["psql"],
        "PGCONNECT_TIMEOUT=20 psql -h allowed.test -U reader library -c 'select 1' 2>&1",
    )
    .allowing(&["allowed.test:5432"]),
    using(
        "java",
        &["java"],
        "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC $WORLD/Main.java http://allowed.test/",
    ),
    using(
        "git",
        &["git"],
        "cd $(mktemp -d) && git -c http.proxy= clone -q http://allowed.test/git/library.git && cat library/file",
    )
    .expecting("of the library"),
    using(
        "git with TLS through the proxy",
        &["git"],
        "cd $(mktemp -d) && git -c http.sslCAInfo=$WORLD/authority.pem clone -q https://allowed.test/git/library.git \
         && cat library/file",
    )
    .expecting("of the library"),
    using(
        "pip",
        &["/usr/bin/python3", "/usr/lib/python3/dist-packages/pip"],
        "/usr/bin/python3 -m pip install --no-cache-dir --retries 0 --disable-pip-version-check --cert $WORLD/authority.pem \
         --index-url https://allowed.test/simple/ --target $(mktemp -d) library 2>&1",
    )
    .expecting("Successfully installed library-1.0"),
    using(
        "npm",
        &["npm"],
        "cd $(mktemp -d) && npm install --fetch-retries 0 --no-audit --no-fund --no-update-notifier --cache $PWD/cache \
         --registry http://allowed.test/npm/ library 2>&1 && cat node_modules/library/package.json",
    )
    .expecting("\"version\": \"1.0.0\""),
    using(
        "cargo",
        &["cargo"],
        "cd $(mktemp -d) && export CARGO_HOME=$PWD/home && mkdir -p src && touch src/lib.rs && printf '%s\\n' \
         '[package]' 'name = \"user\"' '[dependencies]' 'library = { version = \"1\", registry = \"world\" }' > Cargo.toml \
         && cargo fetch --config 'registries.world.index=\"sparse+http://allowed.test/index/\"' 2>&1; ls home/registry/src/*",
    )
    .expecting("library-1.0.0"),
];

#[test]
fn programs_reach_only_allowed_hosts() {
    let mut world = match World::new() {
        Ok(world) => world,
        Err(why) => return skipped(format_args!("programs under network policies: {why}")),
    };
    furnish(&world);
    let mut client = world.client();
    let mut failures = Vec::new();
    for one in USES {
        if let Some(missing) = one.needs.iter().find(|program| !has(&world, program)) {
            skipped(format_args!("network: {} (no {missing})", one.name));
            continue;
        }
        let argv = ["/bin/bash", "-c", one.script];
        let path = std::env::var("PATH").unwrap_or_default();
        let mut run = |world: &mut World, fields| {
            let mut start = world.start(&argv, &fields).variable("PATH", &path);
            for (name, value) in toolchain() {
                start = start.variable(name, &value);
            }
            super::world::finish(&mut client, &start)
        };
        let allowed = run(&mut world, allow(one.allow));
        let seen = !world.contacts().is_empty();
        if !seen || !allowed.output.contains(one.expected) {
            failures.push(format!("{}: reached a server: {seen}; {allowed:?}", one.name));
            continue;
        }
        let refused = run(&mut world, allow(&["unrelated.test", "unrelated.test:22"]));
        let leaks = world.contacts();
        if !leaks.is_empty() || refused.output.contains(one.expected) {
            failures.push(format!("{} without a rule: leaks {leaks:?}; {refused:?}", one.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Data must arrive even if the program exits right after sending it.
#[test]
fn data_sent_just_before_exit_is_delivered() {
    let mut world = match World::new() {
        Ok(world) => world,
        Err(why) => return skipped(format_args!("data sent just before exit: {why}")),
    };
    let mut client = world.client();
    let script = "echo farewell > /dev/tcp/allowed.test/6379";
    let fields = allow(&["allowed.test:6379"]);
    let ending = world.run(&mut client, &["/bin/bash", "-c", script], &fields);
    assert_eq!(ending.code, Some(0), "{ending:?}");
    eventually("the data of the exited program arrives", || {
        world.contacts().iter().any(|contact| contact.1.contains("farewell"))
    });
}

/// The first packet names user and database, and must arrive unchanged.
#[test]
fn a_database_receives_its_clients_packet() {
    let mut world = match World::new() {
        Ok(world) => world,
        Err(why) => return skipped(format_args!("psql under a network policy: {why}")),
    };
    if !has(&world, "psql") {
        return skipped("network: psql is not installed");
    }
    let script = "psql -h allowed.test -U reader library -c 'select 1'";
    let mut client = world.client();
    let fields = allow(&["allowed.test:5432"]);
    let ending = world.run(&mut client, &["/bin/bash", "-c", script], &fields);
    assert_ne!(ending.code, Some(0), "{ending:?}");
    let contacts = world.contacts();
    let heard = |text: &str| contacts.iter().any(|contact| contact.1.contains(text));
    assert!(heard("user\0reader\0database\0library\0"), "{contacts:?}");
    assert_eq!(ending.decisions.len(), 1, "{ending:?}");
    let told = &ending.decisions[0];
    let facts = json!([told["host"], told["port"], told["decision"], told["protocol"]]);
    assert_eq!(facts, json!(["allowed.test", 5432, "allow", "socks5_tcp"]));
}

/// Returns variables for `cargo`, which may be a rustup proxy: without them it would look for its
/// toolchain below `HOME`, which is another directory here.
fn toolchain() -> Vec<(&'static str, String)> {
    let variable = |name: &str| std::env::var(name).ok();
    let below_home = || Some(format!("{}/.rustup", variable("HOME")?));
    let home = variable("RUSTUP_HOME").or_else(below_home).map(|value| ("RUSTUP_HOME", value));
    let name = variable("RUSTUP_TOOLCHAIN").map(|value| ("RUSTUP_TOOLCHAIN", value));
    home.into_iter().chain(name).collect()
}

/// Whether this program or file exists.
fn has(world: &World, program: &str) -> bool {
    if let Some(name) = program.strip_prefix("$WORLD/") {
        return world.path(name).exists();
    }
    if program.starts_with('/') {
        return Path::new(program).exists();
    }
    let mut which = command("sh");
    which.args(["-c", &format!("command -v {program}")]);
    run_command(which).code == Some(0)
}

/// Fills the servers of the world with content.
fn furnish(world: &World) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/network/furnish.sh");
    let mut furnish: Command = command("bash");
    furnish.arg(script).arg(world.path(""));
    let furnished = run_command(furnish);
    assert_eq!(furnished.code, Some(0), "{}", furnished.stderr);
}
