use exec_server_protocol::HostRules;
use exec_server_server::{SandboxCeiling, SandboxLevel};

use super::*;
use crate::cli;

const PATH: &str = "config.toml";

fn file(text: &str) -> ConfigFile {
    ConfigFile { path: PATH.into(), text: text.to_owned() }
}

fn resolved(
    arguments: &[&str],
    variables: &[(&str, &str)],
    text: &str,
) -> Result<Configuration, String> {
    let mut configuration = laid_over(arguments, variables, text)?;
    configuration.check_ceiling().map_err(|error| error.to_string())?;
    configuration.set_host_rules().map_err(|error| error.to_string())?;
    Ok(configuration)
}

/// Merges the layers without checking that settings make sense together.
fn laid_over(
    arguments: &[&str],
    variables: &[(&str, &str)],
    text: &str,
) -> Result<Configuration, String> {
    let arguments = std::iter::once(&"exec-server").chain(arguments);
    let flags = cli::parse(arguments.map(Into::into)).unwrap().flags;
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let variables = variables.iter().map(owned).collect();
    lay_over(&flags, &variables, Some(&file(text))).map_err(|error| error.to_string())
}

fn error(text: &str) -> String {
    resolved(&[], &[], text).unwrap_err()
}

fn setting(key: &str) -> &'static Setting {
    SETTINGS.iter().find(|setting| setting.key == key).unwrap()
}

/// A legal value other than the default, as text and as TOML.
fn sample(setting: &Setting) -> (String, String) {
    let default = setting.show(&Settings::default());
    let text = match (setting.key, &default) {
        ("listen", _) => "stdio".to_owned(),
        ("ws_auth", _) => "capability-token".to_owned(),
        ("ws_token_sha256", _) => "0a".repeat(32),
        ("log", _) => "warn".to_owned(),
        ("log_format", _) => "json".to_owned(),
        ("sandbox.require", _) => "workspace-write".to_owned(),
        ("sandbox.writable_roots" | "sandbox.trusted_links", _) => {
            return ("/a:/b".to_owned(), "[\"/a\", \"/b\"]".to_owned());
        }
        ("network.allow", _) => return ("a,b".to_owned(), "[\"a\", \"b\"]".to_owned()),
        (key, _)
            if key.starts_with("limits.")
                && (key.ends_with("_memory") || key.ends_with("_size")) =>
        {
            "2M".to_owned()
        }
        (key, _) if key.ends_with("_pids") || key.ends_with("_open_files") => {
            return ("7".to_owned(), "7".to_owned());
        }
        (key, _) if key.ends_with("_cpus") => return ("1.5".to_owned(), "1.5".to_owned()),
        ("audit.log", _) => "/var/log/audit.jsonl".to_owned(),
        (_, toml::Value::String(_)) => "2m".to_owned(),
        (_, toml::Value::Array(_)) => return ("a,b".to_owned(), "[\"a\", \"b\"]".to_owned()),
        (_, toml::Value::Boolean(value)) => (!value).to_string(),
        (_, toml::Value::Integer(number)) => (number + 1).to_string(),
        (key, other) => panic!("{key} has an unforeseen default {other}"),
    };
    let literal = match default {
        toml::Value::String(_) => format!("{text:?}"),
        _ => text.clone(),
    };
    (text, literal)
}

fn assert_only_changed(configuration: &Configuration, changed: &Setting, source: &Source) {
    let (_, literal) = sample(changed);
    let defaults = Settings::default();
    for setting in SETTINGS {
        let shown = setting.show(&configuration.settings);
        if setting.key == changed.key {
            assert_eq!(shown.to_string(), literal, "{}", setting.key);
            assert_ne!(shown, setting.show(&defaults), "{}", setting.key);
            assert_eq!(configuration.source(setting), source);
        } else {
            assert_eq!(shown, setting.show(&defaults), "{}", setting.key);
            assert_eq!(configuration.source(setting), &Source::Default);
        }
    }
}

#[test]
fn every_setting_works_in_every_layer() {
    for setting in SETTINGS {
        let (text, literal) = sample(setting);
        let flag = setting.flag(setting.key);
        let by_flag = laid_over(&[&format!("--{flag}"), &text], &[], "").unwrap();
        assert_only_changed(&by_flag, setting, &Source::Flag(flag));

        let variable = variable_of(setting.key);
        let by_variable = laid_over(&[], &[(&variable, &text)], "").unwrap();
        assert_only_changed(&by_variable, setting, &Source::Variable(variable));
        assert_eq!(by_variable.warnings, []);

        let by_file = laid_over(&[], &[], &format!("\n{} = {literal}", setting.key)).unwrap();
        let at = Position { path: PATH.into(), line: 2 };
        assert_only_changed(&by_file, setting, &Source::File(at));
    }
}

#[test]
fn higher_layers_win() {
    let text = "max_sessions = 3";
    let variables = [("EXEC_SERVER_MAX_SESSIONS", "2")];
    let sessions = |configuration: Configuration| configuration.settings.server.max_sessions;
    assert_eq!(sessions(resolved(&["--max-sessions", "1"], &variables, text).unwrap()), 1);
    assert_eq!(sessions(resolved(&[], &variables, text).unwrap()), 2);
    assert_eq!(sessions(resolved(&[], &[], text).unwrap()), 3);
    assert_eq!(sessions(resolved(&[], &[], "").unwrap()), Settings::default().server.max_sessions);
}

#[test]
fn a_higher_layer_replaces_a_list() {
    let text = "allow_host = [\"file\"]";
    let emptied = resolved(&[], &[("EXEC_SERVER_ALLOW_HOST", "")], text).unwrap();
    assert_eq!(emptied.settings.allow_hosts, [""; 0]);
    let flags = ["--allow-host", "a", "--allow-host", "b,c"];
    let replaced = resolved(&flags, &[("EXEC_SERVER_ALLOW_HOST", "d")], text).unwrap();
    assert_eq!(replaced.settings.allow_hosts, ["a", "b", "c"]);
}

#[test]
fn rust_log_has_the_lowest_precedence() {
    let log = |variables: &[(&str, &str)], text: &str| {
        let configuration = resolved(&[], variables, text).unwrap();
        let source = configuration.source(setting("log")).to_string();
        (configuration.settings.log, source)
    };
    let rust_log = ("RUST_LOG", "trace");
    let expect = |filter: &str, source: &str| (filter.to_owned(), source.to_owned());
    assert_eq!(log(&[rust_log], ""), expect("trace", "RUST_LOG"));
    assert_eq!(log(&[rust_log], "log = \"warn\""), expect("warn", "config.toml:1"));
    assert_eq!(
        log(&[rust_log, ("EXEC_SERVER_LOG", "error")], "log = \"warn\""),
        expect("error", "EXEC_SERVER_LOG")
    );
    assert_eq!(log(&[("RUST_LOG", "")], ""), expect("info", "default"));
    assert_eq!(log(&[("RUST_LOG", "a=loud")], "log = \"warn\""), expect("warn", "config.toml:1"));
    assert!(
        resolved(&[], &[("RUST_LOG", "a=loud")], "")
            .unwrap_err()
            .starts_with("RUST_LOG: expected a log filter such as")
    );
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    assert_eq!(
        error("# mine\nlisten = \"off\"\nmax_sesions = 3\n"),
        "config.toml:3: unknown key \"max_sesions\" (did you mean \"max_sessions\"?)"
    );
    assert_eq!(error("zebra = 1"), "config.toml:1: unknown key \"zebra\"");
    assert!(error("\nsandbox.mode = 1").starts_with("config.toml:2: unknown key \"sandbox.mode\""));
    assert_eq!(
        error("[sandbox]\nwritable_root = []"),
        "config.toml:2: unknown key \"sandbox.writable_root\" (did you mean \"sandbox.writable_roots\"?)"
    );
    assert_eq!(error("\"two\\nlines\" = 1"), "config.toml:1: unknown key \"two\\nlines\"");
}

#[test]
fn clients_read_the_url_from_the_variable_or_the_file() {
    let text = "listen = \"off\"\n\n[exec_server]\nurl = \"ws://a:1\"";
    let url = |variables: &[(&str, &str)], text: &str| {
        let configuration = resolved(&[], variables, text).unwrap();
        assert_eq!(configuration.warnings, []);
        configuration.server_url.map(|(url, source)| format!("{url} {source}"))
    };
    assert_eq!(url(&[], text).as_deref(), Some("ws://a:1 config.toml:4"));
    let variable = [("EXEC_SERVER_URL", "unix:///b")];
    assert_eq!(url(&variable, text).as_deref(), Some("unix:///b EXEC_SERVER_URL"));
    assert_eq!(url(&variable, "").as_deref(), Some("unix:///b EXEC_SERVER_URL"));
    assert_eq!(url(&[("EXEC_SERVER_URL", "")], text).as_deref(), Some("ws://a:1 config.toml:4"));
    assert_eq!(url(&[], ""), None);
}

#[test]
fn a_ceiling_is_a_table_of_the_file() {
    let text = "log = \"off\"\n[sandbox]\nrequire = \"workspace-write\"\nwritable_roots = [\"/srv/a\", \"/srv/b\"]\n\
                network = true\n[exec_server]\nurl = \"ws://a:1\"";
    let ceiling = resolved(&[], &[], text).unwrap().settings.server.sandbox;
    assert_eq!(
        ceiling,
        SandboxCeiling {
            hosts: None,
            require: Some(SandboxLevel::WorkspaceWrite),
            writable_roots: vec!["/srv/a".into(), "/srv/b".into()],
            network: true,
        }
    );
    let arguments = [
        "--sandbox-require",
        "read-only",
        "--sandbox-writable-root",
        "/c",
        "--sandbox-writable-root=/d,e",
        "--sandbox-network",
        "false",
    ];
    let ceiling = resolved(&arguments, &[], text).unwrap().settings.server.sandbox;
    assert_eq!(ceiling.require, Some(SandboxLevel::ReadOnly));
    assert_eq!(ceiling.writable_roots, [PathBuf::from("/c"), "/d,e".into()]);
    assert!(!ceiling.network);
}

#[test]
fn errors_in_the_ceiling_have_a_position() {
    let levels = "expected \"read-only\" or \"workspace-write\" or \"none\"";
    let paths = "expected a list of absolute paths such as [\"/srv/work\"]";
    for (text, expected) in [
        ("sandbox = 3", "1: sandbox: expected a table such as [sandbox], found 3".to_owned()),
        (
            "[sandbox]\nrequire = \"read-write\"",
            format!("2: sandbox.require: {levels}, found \"read-write\""),
        ),
        ("[sandbox]\nrequire = true", format!("2: sandbox.require: {levels}, found true")),
        (
            "[sandbox]\nwritable_roots = \"/a\"",
            format!("2: sandbox.writable_roots: {paths}, found \"/a\""),
        ),
        (
            "[sandbox]\nwritable_roots = [\"\"]",
            format!("2: sandbox.writable_roots: {paths}, found [\"\"]"),
        ),
        (
            "[sandbox]\n\nwritable_roots = [\"/a\", \"work\"]",
            "3: sandbox.writable_roots: \"work\" is not an absolute path".to_owned(),
        ),
        (
            "[sandbox]\nwritable_roots = [\"/a/../b\"]",
            "2: sandbox.writable_roots: \"/a/../b\" must not contain \"..\"".to_owned(),
        ),
        (
            "[sandbox]\nwritable_roots = [\"/a\\u0000\"]",
            "2: sandbox.writable_roots: \"/a\\0\" must not contain NUL".to_owned(),
        ),
        (
            "[sandbox]\nnetwork = \"no\"",
            "2: sandbox.network: expected true or false, found \"no\"".to_owned(),
        ),
    ] {
        assert_eq!(error(text), format!("config.toml:{expected}"));
    }
    assert_eq!(
        resolved(&["--sandbox-writable-root", ""], &[], "").unwrap_err(),
        "--sandbox-writable-root: \"\" is not an absolute path"
    );
}

#[test]
fn host_rules_are_a_table_of_the_file() {
    let hosts = |arguments: &[&str], variables: &[(&str, &str)], text: &str| {
        resolved(arguments, variables, text).unwrap().settings.server.sandbox.hosts
    };
    let rules = |allow: &[&str], deny: &[&str], ask| {
        let texts = |patterns: &[&str]| patterns.iter().map(|text| (*text).to_owned()).collect();
        Some(HostRules { allow: texts(allow), deny: texts(deny), ask })
    };
    assert_eq!(hosts(&[], &[], ""), None);
    assert_eq!(hosts(&[], &[], "[network]\nask = false\ndeny = []"), None);
    let text =
        "[network]\nallow = [\"*.a.example\", \"b:1\"]\ndeny = [\"x.a.example\"]\nask = true";
    assert_eq!(hosts(&[], &[], text), rules(&["*.a.example", "b:1"], &["x.a.example"], true));
    assert_eq!(hosts(&[], &[], "[network]\nallow = []"), rules(&[], &[], false));
    assert_eq!(hosts(&[], &[], "[network]\ndeny = [\"a\"]"), rules(&[], &["a"], false));
    // An empty `allow` allows no host, even with a `deny`.
    let none = "[network]\nallow = []\ndeny = [\"a\"]";
    assert_eq!(hosts(&[], &[], none), rules(&[], &[], false));
    let variables = [("EXEC_SERVER_NETWORK_ALLOW", "c, d:2")];
    assert_eq!(hosts(&[], &variables, "[network]\nask = true"), rules(&["c", "d:2"], &[], true));
    let flags =
        ["--network-allow", "e", "--network-allow=f", "--network-deny", "g", "--network-ask"];
    assert_eq!(hosts(&flags, &variables, ""), rules(&["e", "f"], &["g"], true));
}

#[test]
fn errors_in_host_rules_have_a_position() {
    for (text, expected) in [
        ("network = true", "1: network: expected a table such as [network], found true"),
        (
            "[network]\nallow = [\"*\"]",
            "2: network.allow: \"*\" matches every host; name the hosts, such as example.org or \
             *.example.org",
        ),
        (
            "[network]\n\ndeny = [\"a:0\"]",
            "3: network.deny: \"a:0\" has an invalid port; write a number from 1 to 65535 after \
             the colon",
        ),
        (
            "[network]\nallow = \"a\"",
            "2: network.allow: expected a list of strings such as [\"*.example.org:443\"], \
             found \"a\"",
        ),
        (
            "[network]\nallow = [\"a\"]\n[sandbox]\nrequire = \"read-only\"",
            "2: network.allow has no effect without a network; set sandbox.network to true",
        ),
    ] {
        assert_eq!(error(text), format!("config.toml:{expected}"));
    }
    let variables = [("EXEC_SERVER_NETWORK_ALOW", "a")];
    assert_eq!(
        resolved(&[], &variables, "").unwrap_err(),
        "unknown environment variable \"EXEC_SERVER_NETWORK_ALOW\" \
         (did you mean \"EXEC_SERVER_NETWORK_ALLOW\"?)"
    );
}

/// An operator who sets only `network = false` believes that the network is off.
#[test]
fn ceiling_settings_without_a_required_level_are_refused() {
    let advice = "has no effect without sandbox.require; set sandbox.require to \"workspace-write\", \"read-only\" or \"none\"";
    assert_eq!(
        error("[sandbox]\nnetwork = false"),
        format!("config.toml:2: sandbox.network {advice}")
    );
    assert_eq!(
        resolved(&["--sandbox-writable-root", "/a"], &[], "").unwrap_err(),
        format!("--sandbox-writable-root: sandbox.writable_roots {advice}")
    );
    let variables = [("EXEC_SERVER_SANDBOX_REQUIRE", "none")];
    assert!(resolved(&[], &variables, "[sandbox]\nnetwork = false").is_ok());
}

#[test]
fn errors_in_the_server_url_have_a_position() {
    for (text, expected) in [
        (
            "log = \"off\"\n[exec_server]\nurl = 3",
            "config.toml:3: exec_server.url: expected a URL such as \"ws://127.0.0.1:7777\" or \"unix:///path\", found 3",
        ),
        (
            "exec_server.url = \"http://a\"",
            "config.toml:1: exec_server.url: \"http://a\" is not a server URL; expected wss://HOST:PORT[/PATH], ws://HOST:PORT[/PATH] or unix:///PATH",
        ),
        (
            "[exec_server]\n\nulr = \"ws://a\"",
            "config.toml:3: unknown key \"exec_server.ulr\" (did you mean \"exec_server.url\"?)",
        ),
        (
            "exec_server = 3",
            "config.toml:1: exec_server: expected a table such as [exec_server], found 3",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
    assert!(
        resolved(&[], &[("EXEC_SERVER_URL", "a")], "")
            .unwrap_err()
            .starts_with("EXEC_SERVER_URL: \"a\" is not a server URL")
    );
}

#[test]
fn a_bad_value_is_reported_with_its_position() {
    let wanted = "expected a whole number of at least 1, found \"many\"";
    assert_eq!(
        error("\n\n\nconcurrent_requests = \"many\""),
        format!("config.toml:4: concurrent_requests: {wanted}")
    );
    assert_eq!(
        resolved(&[], &[("EXEC_SERVER_CONCURRENT_REQUESTS", "many")], "").unwrap_err(),
        format!("EXEC_SERVER_CONCURRENT_REQUESTS: {wanted}")
    );
    assert_eq!(
        resolved(&["--concurrent-requests", "many"], &[], "").unwrap_err(),
        format!("--concurrent-requests: {wanted}")
    );
    assert_eq!(
        error("listen = \"off\"\n[max_sessions]\na = 1"),
        "config.toml:2: max_sessions: expected a whole number of at least 1, found a table"
    );
}

#[test]
fn the_first_error_in_the_file_is_reported() {
    let text = "max_sessions = 0\nallow_host = 3\nzebra = 1";
    assert!(error(text).starts_with("config.toml:1: max_sessions: "));
}

#[test]
fn a_replaced_value_is_still_checked() {
    let outcome = resolved(&["--max-sessions", "1"], &[], "max_sessions = 0");
    assert!(outcome.unwrap_err().starts_with("config.toml:1: "));
}

#[test]
fn syntax_errors_have_a_position_and_fit_on_one_line() {
    for text in
        ["\nlisten = ", "\nlisten off", "\nlisten = \"off", "\nlisten = \"off\" max_sessions = 3"]
    {
        let error = error(text);
        assert!(error.starts_with("config.toml:2: "), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let duplicate = error("listen = \"off\"\nlisten = \"off\"");
    assert_eq!(duplicate, "config.toml:2: duplicate key");
}

#[test]
fn unknown_variables_are_only_warnings() {
    let variables = [("EXEC_SERVER_MAX_SESION", "secret"), ("EXEC_SERVER_ZEBRA", "1")];
    let configuration = resolved(&[], &variables, "").unwrap();
    let remarks: Vec<_> = configuration.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        remarks,
        [
            "unknown environment variable \"EXEC_SERVER_MAX_SESION\" is ignored (did you mean \"EXEC_SERVER_MAX_SESSIONS\"?)",
            "unknown environment variable \"EXEC_SERVER_ZEBRA\" is ignored"
        ]
    );
}

#[test]
fn an_unknown_restricting_variable_is_an_error() {
    let error = resolved(&[], &[("EXEC_SERVER_SANDBOX_REQUIER", "read-only")], "").unwrap_err();
    assert_eq!(
        error,
        "unknown environment variable \"EXEC_SERVER_SANDBOX_REQUIER\" (did you mean \"EXEC_SERVER_SANDBOX_REQUIRE\"?)"
    );
}

#[cfg(unix)]
#[test]
fn only_variables_of_this_program_must_be_text() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = || OsString::from_vec(vec![0xff]);
    let environment = |name: &str| [(OsString::from(name), bytes()), (bytes(), bytes())];
    assert!(load(&Flags::default(), environment("OTHER")).is_ok());
    let error = load(&Flags::default(), environment("EXEC_SERVER_LOG")).unwrap_err();
    assert_eq!(error.to_string(), "EXEC_SERVER_LOG: the value is not valid UTF-8");
}

#[test]
fn the_variable_selects_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.toml");
    std::fs::write(&path, "listen = \"off\"").unwrap();
    let environment = [(CONFIG_VARIABLE.into(), path.into())];
    let configuration = load(&Flags::default(), environment).unwrap();
    assert_eq!(configuration.settings.listen, ["off"]);
    assert_eq!(configuration.warnings, []);
}

#[test]
fn variables_that_are_read_elsewhere_are_known() {
    let environment = READ_ELSEWHERE.map(|name| (name.into(), "a".into()));
    assert_eq!(load(&Flags::default(), environment).unwrap().warnings, []);
}

const OLD_FLAG: [&str; 2] = ["--max-processes-per-connection", "7"];
const OLD_VARIABLE: (&str, &str) = ("EXEC_SERVER_MAX_PROCESSES_PER_CONNECTION", "7");
const OLD_KEY: &str = "max_processes_per_connection = 7\n";

#[test]
fn an_old_name_works_and_warns_with_the_new_one() {
    for (configuration, warning) in [
        (
            resolved(&OLD_FLAG, &[], ""),
            "--max-processes-per-connection is deprecated; use --max-processes-per-session",
        ),
        (
            resolved(&[], &[OLD_VARIABLE], ""),
            "EXEC_SERVER_MAX_PROCESSES_PER_CONNECTION is deprecated; \
             use EXEC_SERVER_MAX_PROCESSES_PER_SESSION",
        ),
        (
            resolved(&[], &[], OLD_KEY),
            "config.toml:1: max_processes_per_connection is deprecated; \
             use max_processes_per_session",
        ),
    ] {
        let configuration = configuration.unwrap();
        assert_eq!(configuration.settings.server.max_processes_per_session, 7);
        let warnings: Vec<_> = configuration.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [warning]);
    }
}

#[test]
fn old_and_new_name_in_one_layer_are_an_error() {
    let [old, value] = OLD_FLAG;
    let flags = [old, value, "--max-processes-per-session", "8"];
    assert_eq!(
        resolved(&flags, &[], "").unwrap_err(),
        "--max-processes-per-connection and --max-processes-per-session are the same setting; \
         give only --max-processes-per-session"
    );
    let variables = [OLD_VARIABLE, ("EXEC_SERVER_MAX_PROCESSES_PER_SESSION", "8")];
    assert_eq!(
        resolved(&[], &variables, "").unwrap_err(),
        "EXEC_SERVER_MAX_PROCESSES_PER_CONNECTION and EXEC_SERVER_MAX_PROCESSES_PER_SESSION are \
         the same setting; give only EXEC_SERVER_MAX_PROCESSES_PER_SESSION"
    );
    assert_eq!(
        error(&format!("{OLD_KEY}max_processes_per_session = 8")),
        "config.toml:2: max_processes_per_connection and max_processes_per_session are the same \
         setting; give only max_processes_per_session"
    );
}

#[test]
fn an_old_name_has_the_precedence_of_its_layer() {
    let text = "max_processes_per_session = 8";
    let by_flag = resolved(&OLD_FLAG, &[], text).unwrap();
    assert_eq!(by_flag.settings.server.max_processes_per_session, 7);
    let by_variable =
        resolved(&[], &[("EXEC_SERVER_MAX_PROCESSES_PER_SESSION", "9")], OLD_KEY).unwrap();
    assert_eq!(by_variable.settings.server.max_processes_per_session, 9);
}

#[test]
fn a_bad_value_is_reported_under_the_given_name() {
    let start = "config.toml:1: max_processes_per_connection: ";
    assert!(error("max_processes_per_connection = \"many\"").starts_with(start));
}
