//! The files of `packaging/`: systemd accepts the units, the image starts, command lines work.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use exec_server_test_support::{Issued, TestAuthority, Validity, skipped};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::foreign_client::python;
use crate::monitoring::{get, promtool, serve};
use crate::readme::{blocks, run_as_newcomer};
use crate::service_manager::PASS;
use crate::support::machine::is_root;
use crate::support::rendezvous::Rendezvous;
use crate::support::{PROGRAM, Running, command, run_command, run_program};

const UNITS: [&str; 4] = [
    "packaging/systemd/exec-server.service",
    "packaging/systemd/exec-server.socket",
    "packaging/systemd/exec-server-rendezvous.service",
    "packaging/systemd/exec-server-rendezvous.socket",
];

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn read(file: &str) -> String {
    std::fs::read_to_string(repository().join(file)).unwrap()
}

pub(crate) fn is_there(program: &str) -> bool {
    let search = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search).any(|directory| directory.join(program).exists())
}

#[test]
fn systemd_accepts_the_units() {
    if !is_there("systemd-analyze") {
        skipped("no systemd-analyze: units are not checked");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut verify = command("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    for unit in UNITS {
        let name = Path::new(unit).file_name().unwrap();
        let copy = directory.path().join(name);
        // `verify` checks that the program exists.
        let text = read(unit).replace("/usr/local/bin/exec-server", PROGRAM);
        std::fs::write(&copy, text).unwrap();
        verify.arg(copy);
    }
    let outcome = run_command(verify);
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{outcome:?}");
}

/// Returns the exposure of a unit from 0 to 10, and the name of that level.
fn exposure(unit: &str) -> Option<(f64, String)> {
    let mut security = command("systemd-analyze");
    security.args(["security", "--offline=yes", "--no-pager"]).arg(repository().join(unit));
    let outcome = run_command(security);
    let line = outcome.stdout.lines().find(|line| line.contains("Overall exposure level"))?;
    let mut words = line.rsplit_once(": ")?.1.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
}

#[test]
fn the_exposure_of_the_units_does_not_grow() {
    if !is_there("systemd-analyze") {
        skipped("no systemd-analyze: the exposure of units is not checked");
        return;
    }
    let Some((value, level)) = exposure(UNITS[2]) else {
        skipped("systemd-analyze has no offline check (systemd 250)");
        return;
    };
    assert!(matches!(&*level, "OK" | "SAFE" | "PERFECT") && value <= 1.5, "{value} {level}");
    // The unit of the server is less strict, because the server runs programs of a user.
    let (value, level) = exposure(UNITS[0]).unwrap();
    assert!(value <= 6.3, "{value} {level}");
    // The unit of the server mentions every hardening option of the rendezvous, except those about
    // files.
    let server = read(UNITS[0]);
    let rendezvous = read(UNITS[2]);
    let (_, hardening) = rendezvous.split_once("\nAmbientCapabilities=").unwrap();
    for line in hardening.lines().take_while(|line| !line.is_empty()) {
        let Some((option, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let is_about_files = matches!(option, "UMask" | "RemoveIPC");
        assert!(option.is_empty() || is_about_files || server.contains(option), "{option}");
    }
}

/// Returns the command line of a unit, without the program.
fn exec_start(unit: &str) -> Vec<String> {
    let text = read(unit).replace("\\\n", " ");
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let mut words = line.split_whitespace();
    assert_eq!(words.next(), Some("/usr/local/bin/exec-server"));
    words.map(str::to_owned).collect()
}

fn passing(sockets: &str, arguments: impl IntoIterator<Item = String>) -> Running {
    let python = python();
    let mut program = command(python.to_str().unwrap());
    program.args(["-c", PASS, sockets, "", PROGRAM]).args(arguments);
    Running::start(program)
}

pub(crate) fn end(running: Running) {
    running.signal(Signal::TERM);
    let (status, _, log) = running.finish();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn the_command_lines_of_the_units_work() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("exec-server.sock").display().to_string();
    let mut server = passing(&format!("exec-server.socket={socket}"), exec_start(UNITS[0]));
    let url = server.line().trim_end().to_owned();
    assert_eq!(url, format!("unix://{socket}"));
    let outcome = run_program(&["run", "--connect", &url, "--", "echo", "hello"]);
    assert_eq!(outcome.stdout, "hello\n", "{outcome:?}");
    end(server);

    let authority = TestAuthority::new();
    let names = ["relay.example"];
    let Issued { certificate, key } = authority.issue(directory.path(), &names, Validity::Now);
    let substitute = |word: String| {
        word.replace("%S", directory.path().to_str().unwrap())
            .replace("/etc/exec-server/relay-cert.pem", certificate.to_str().unwrap())
            .replace("/etc/exec-server/relay-key.pem", key.to_str().unwrap())
    };
    let arguments = exec_start(UNITS[2]).into_iter().map(substitute);
    let mut rendezvous = passing("exec-server-rendezvous.socket=127.0.0.1", arguments);
    assert_eq!(rendezvous.line(), "https://relay.example\n");
    end(rendezvous);
}

/// Returns the command of a service in the compose file, or that of its health check.
fn compose_command(service: &str, key: &str) -> Vec<String> {
    let text = read("packaging/compose.yaml");
    let (_, section) = text.split_once(&format!("\n  {service}:\n")).unwrap();
    let (_, list) = section.split_once(&format!(" {key}:")).unwrap();
    if let Some(inline) = list.strip_prefix(" [") {
        let words = inline.split(']').next().unwrap().split(", ");
        return words.map(str::to_owned).collect();
    }
    let items = list.lines().skip(1).map_while(|line| line.strip_prefix("      - "));
    items.map(str::to_owned).collect()
}

#[test]
fn the_command_lines_of_the_compose_file_work() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "a-capability-token-of-some-length\n").unwrap();
    let start = |service: &str| {
        let words = compose_command(service, "command");
        assert!(words.len() > 3, "{words:?}");
        let local = |word: String| {
            word.replace("0.0.0.0:7777", "127.0.0.1:0")
                .replace("0.0.0.0:8443", "127.0.0.1:0")
                .replace("/run/secrets", path)
                .replace("/data", &format!("{path}/data"))
        };
        let mut program = command(PROGRAM);
        program.args(words.into_iter().map(local)).env("XDG_STATE_HOME", path);
        Running::start(program)
    };
    let mut server = start("server");
    let url = server.line().trim_end().to_owned();
    let line = loop {
        let line = server.error_line();
        if line.contains("--tls-fingerprint") {
            break line;
        }
    };
    let fingerprint = line.trim_end().rsplit_once(' ').unwrap().1.to_owned();
    let token = token.to_str().unwrap();
    let to = ["run", "--connect", &url, "--token-file", token, "--tls-fingerprint", &fingerprint];
    let outcome = run_program(&[&to[..], &["--", "echo", "hello"]].concat());
    assert_eq!(outcome.stdout, "hello\n", "{outcome:?}");
    end(server);

    let mut rendezvous = start("rendezvous");
    assert_eq!(rendezvous.line(), "https://localhost:8443\n");
    let check = compose_command("rendezvous", "test");
    assert_eq!(check[..2], ["CMD", "/usr/bin/exec-server"]);
    let check = check[2..].join(" ").replace("/data", &format!("{path}/data"));
    let outcome = run_program(&check.split(' ').collect::<Vec<_>>());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    end(rendezvous);
}

/// Runs the recipe of `docs/operating.md` with scripts that execute the real program.
#[test]
fn the_recipe_for_an_upgrade_works() {
    let page = read("docs/operating.md");
    let (_, section) = page.split_once("\n## Upgrade and rollback\n").unwrap();
    let blocks = blocks(section)[..2].join("\n");
    let home = tempfile::tempdir().unwrap();
    let bin = home.path().join("bin");
    let script = format!(
        "set -e\n\
         mkdir bin\n\
         printf '#!/bin/sh\\n# old\\nexec {PROGRAM} \"$@\"\\n' > bin/exec-server\n\
         printf '#!/bin/sh\\n# new\\nexec {PROGRAM} \"$@\"\\n' > exec-server\n\
         chmod +x bin/exec-server exec-server\n\
         sudo() {{ [ \"$1\" != -u ] || shift 2; \"$@\"; }}\n\
         systemctl() {{ echo \"$@: $(sed -n 's/^# //p' bin/exec-server)\"; }}\n\
         {}\n",
        blocks.replace("/usr/local/bin", bin.to_str().unwrap())
    );
    let outcome = run_as_newcomer(&script, home.path());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let said: Vec<_> = outcome.stdout.lines().collect();
    assert!(said[0].starts_with("exec-server "), "{outcome:?}");
    assert_eq!(said[1..], ["restart exec-server: new", "restart exec-server: old"]);
}

/// Buildah with its images and containers in a temporary directory.
struct Buildah {
    directory: TempDir,
}

impl Buildah {
    fn new() -> Self {
        Self { directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut buildah = command("buildah");
        for (option, name) in [("--root", "store"), ("--runroot", "run")] {
            buildah.arg(option).arg(self.directory.path().join(name));
        }
        buildah.args(["--storage-driver", "vfs"]).args(arguments);
        buildah
    }

    fn run(&self, arguments: &[&str]) -> String {
        let outcome = run_command(self.command(arguments));
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome.stdout.trim_end().to_owned()
    }
}

impl Drop for Buildah {
    fn drop(&mut self) {
        // Also unmounts the containers, so that the directory can be removed.
        let _ = self.command(&["rm", "--all"]).output();
    }
}

/// Returns a stripped program for images and packages: the static one, if `just static-test` has
/// built it.
pub(crate) fn stripped_program(directory: &Path) -> PathBuf {
    let program = std::env::var_os("STATIC_PROGRAM").unwrap_or_else(|| OsString::from(PROGRAM));
    let stripped = directory.join("stripped");
    let mut strip = command("strip");
    strip.arg("-o").arg(&stripped).arg(program);
    assert_eq!(run_command(strip).code, Some(0));
    stripped
}

/// Runs the program in a root directory as the user of the image, with `/proc` and `/dev` as in a
/// container.
fn inside(root: &str, arguments: &[&str]) -> Command {
    const ENTER: &str = "\
        for name in proc dev; do \
            mkdir -p \"$0/$name\" && mount --rbind \"/$name\" \"$0/$name\" || exit; \
        done; \
        exec chroot --userspec=+65532:+65532 \"$0\" /usr/bin/exec-server \"$@\"";
    let mut program = command("unshare");
    program.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/data");
    program.args(["--mount", "sh", "-c", ENTER, root]).args(arguments);
    program
}

fn status_of(url: &str, path: &str) -> String {
    let address = url.split_once("://").unwrap().1;
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn the_image_can_be_built_and_serves() {
    if !is_there("buildah") || !is_root() {
        skipped("no buildah, or not root: no image is built");
        return;
    }
    let buildah = Buildah::new();
    let context = buildah.directory.path().join("image");
    let program = stripped_program(buildah.directory.path());
    let mut layout = command("bash");
    layout.arg(repository().join("scripts/container-root")).arg(program).arg(&context);
    let outcome = run_command(layout);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");

    let dockerfile = repository().join("packaging/Dockerfile");
    let (dockerfile, context) = (dockerfile.to_str().unwrap(), context.to_str().unwrap());
    let build = ["build", "--isolation", "chroot", "--tag", "exec-server", "--file", dockerfile];
    buildah.run(&[&build[..], &[context]].concat());
    let settings = ["inspect", "--type", "image", "--format"];
    let format = "{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.WorkingDir}}";
    let settings = buildah.run(&[&settings[..], &[format, "exec-server"]].concat());
    assert_eq!(settings, "65532:65532 [/usr/bin/exec-server] /data");

    let container = buildah.run(&["from", "--pull=never", "exec-server"]);
    let run = ["run", "--isolation", "chroot", &container, "--", "/usr/bin/exec-server"];
    let version = buildah.run(&[&run[..], &["--version"]].concat());
    assert_eq!(version, run_program(&["--version"]).stdout.trim_end());

    let root = buildah.run(&["mount", &container]);
    for arguments in [
        &["--listen", "ws://127.0.0.1:0"][..],
        &["rendezvous", "--listen", "http://127.0.0.1:0", "--data", "/data"],
    ] {
        let mut service = Running::start(inside(&root, arguments));
        let url = service.line().trim_end().to_owned();
        assert!(!url.is_empty(), "{:?}", service.finish());
        assert_eq!(status_of(&url, "/healthz"), "200");
        if url.starts_with("ws://") {
            // The only program in the image.
            let run = ["run", "--connect", &url, "--cwd", "/data", "--", "/usr/bin/exec-server"];
            let outcome = run_program(&[&run[..], &["--version"]].concat());
            assert_eq!(outcome.stdout.trim_end(), version, "{outcome:?}");
        }
        end(service);
    }
}

const DASHBOARD: &str = "packaging/grafana/exec-server.json";
const ALERTS: &str = "packaging/prometheus/alerts.yml";
const SCRAPE: &str = "packaging/prometheus/scrape.yml";

/// Returns the types of all metrics of a running server and a running rendezvous, by name.
fn metrics_of_the_code() -> BTreeMap<String, String> {
    let (_server, server_url) = serve(&["--metrics"]);
    let data = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::start_with(data.path(), "http://127.0.0.1:0", |program| {
        program.arg("--metrics");
    });
    let mut metrics = BTreeMap::new();
    for url in [&server_url, &rendezvous.url] {
        let (status, text) = get(url, "/metrics", "");
        assert_eq!(status, 200, "{text}");
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            metrics.insert(name.to_owned(), kind.to_owned());
        }
    }
    metrics
}

/// Returns the names of metrics in a text; for a `_bucket` series, the name of the histogram.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_word(c));
    words
        .filter(|word| word.starts_with("exec_server_") || word.starts_with("process_"))
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect()
}

#[test]
fn the_docs_list_every_metric_with_its_type() {
    let page = read("docs/operating.md");
    let (_, rest) = page.split_once("<!-- metrics -->").unwrap();
    let (tables, _) = rest.split_once("<!-- end of metrics -->").unwrap();
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `")).map(|row| {
        let (name, rest) = row.split_once("` | ").unwrap();
        (name.to_owned(), rest.split(' ').next().unwrap().to_owned())
    });
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), metrics_of_the_code());
}

#[test]
fn dashboard_alerts_and_docs_use_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    let metrics = metrics_of_the_code();
    let page = read("docs/operating.md");
    // Other sections of the page contain names of modules.
    let (_, sections) = page.split_once("\n## Metrics\n").unwrap();
    let (sections, _) = sections.split_once("\n## Shutdown\n").unwrap();
    for text in [&*queries.join("\n"), &*read(ALERTS), sections] {
        let used = metrics_in(text);
        assert!(used.len() > 5, "{used:?}");
        let unknown: Vec<_> = used.iter().filter(|name| !metrics.contains_key(**name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}

#[test]
fn prometheus_accepts_the_alerts_and_the_scrape_configuration() {
    if promtool().arg("--version").output().is_err() {
        skipped("no promtool: alerts and the scrape configuration are not checked");
        return;
    }
    // promtool checks that the files named in a configuration exist.
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["exec-server.token", "exec-server-rendezvous.token"] {
        std::fs::write(path(name), "token").unwrap();
    }
    let authority = TestAuthority::new();
    let Issued { certificate, .. } = authority.issue(directory.path(), &["box"], Validity::Now);
    std::fs::copy(certificate, path("exec-server-ca.pem")).unwrap();
    std::fs::write(path("exec-server-alerts.yml"), read(ALERTS)).unwrap();
    let etc = format!("{}/", directory.path().display());
    std::fs::write(path("prometheus.yml"), read(SCRAPE).replace("/etc/prometheus/", &etc)).unwrap();
    for (check, file) in [("rules", "exec-server-alerts.yml"), ("config", "prometheus.yml")] {
        let mut promtool = promtool();
        promtool.args(["check", check]).arg(path(file));
        let outcome = run_command(promtool);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
}
