//! `exec-server config`: prints the effective settings, as an equivalent file or as JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use crate::config::{Configuration, SERVER_URL_KEY, SETTINGS, Setting};

pub(crate) fn run(
    configuration: &Configuration,
    json: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let text = if json {
        serde_json::to_string(&Json(configuration))? + "\n"
    } else {
        toml_text(configuration)
    };
    super::print(text.as_bytes(), out)
}

/// Formats one line per setting, so that a comment can show the source of its value. A setting
/// without a value is commented out.
fn toml_text(configuration: &Configuration) -> String {
    /// The longest assignment that moves all comments to the right. A longer one moves only its own
    /// comment.
    const WIDEST_COLUMN: usize = 60;
    let assignment = |setting: &Setting| {
        let value = setting.show(&configuration.settings);
        let comment = if setting.is_given(&configuration.settings) { "" } else { "# " };
        format!("{comment}{} = {value}", setting.place_in_file().1)
    };
    let widths = SETTINGS.iter().map(|setting| assignment(setting).chars().count());
    let column = widths.filter(|width| *width <= WIDEST_COLUMN).max().unwrap_or(0);

    let mut text = String::new();
    for group in SETTINGS.chunk_by(|a, b| a.group == b.group) {
        if !text.is_empty() {
            text.push('\n');
        }
        // Lines after the header of a table belong to the table, so groups with a table come last.
        if let Some(section) = group.iter().find_map(|setting| setting.place_in_file().0) {
            writeln!(text, "[{section}]").expect("a String accepts every write");
        }
        for setting in group {
            let source = configuration.source(setting);
            writeln!(text, "{:column$}  # {source}", assignment(setting))
                .expect("a String accepts every write");
        }
    }
    if let Some((url, source)) = &configuration.server_url {
        let (section, key) = SERVER_URL_KEY.split_once('.').expect("the key is in a table");
        let assignment = format!("{key} = {}", toml::Value::from(url.as_written()));
        writeln!(text, "\n[{section}]\n{assignment:column$}  # {source}")
            .expect("a String accepts every write");
    }
    text
}

struct Json<'a>(&'a Configuration);

#[derive(Serialize)]
struct JsonSetting {
    value: toml::Value,
    source: String,
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of_server = SETTINGS.iter().map(|setting| {
            let value = setting.show(&self.0.settings);
            let source = self.0.source(setting).to_string();
            (setting.key, JsonSetting { value, source })
        });
        let of_clients = self.0.server_url.iter().map(|(url, source)| {
            let value = url.as_written().into();
            (SERVER_URL_KEY, JsonSetting { value, source: source.to_string() })
        });
        serializer.collect_map(of_server.chain(of_clients))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, load};

    fn printed(configuration: &Configuration, json: bool) -> String {
        let mut out = Vec::new();
        run(configuration, json, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn variable(name: &str, value: &str) -> (std::ffi::OsString, std::ffi::OsString) {
        (name.into(), value.into())
    }

    #[test]
    fn the_output_is_a_file_that_loads_the_same_settings() {
        let environment = [
            variable("EXEC_SERVER_LISTEN", "unix:///tmp/\"quoted\" \\ é#"),
            variable("EXEC_SERVER_ALLOW_ORIGIN", "https://a.example,https://\"b\""),
            variable("EXEC_SERVER_DETACHED_SESSION_TTL", "1h 1500ms"),
            variable("EXEC_SERVER_SPILL_OUTPUT_BYTES_PER_PROCESS", "9223372036854775807"),
            variable("EXEC_SERVER_ALLOW_DIRECT_EXEC", "false"),
            variable("EXEC_SERVER_SANDBOX_REQUIRE", "workspace-write"),
            variable("EXEC_SERVER_SANDBOX_WRITABLE_ROOTS", "/srv/a b:/srv/\"c\","),
            variable("EXEC_SERVER_URL", "unix:///tmp/\"quoted\""),
        ];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("line\nbreak.toml");
        let first = load(&Flags::default(), environment).unwrap();
        std::fs::write(&path, printed(&first, false)).unwrap();

        let flags = Flags { config_file: Some(path.clone()), values: Vec::new() };
        let second = load(&flags, []).unwrap();
        assert_eq!(first.settings, second.settings);
        let url = |configuration: &Configuration| {
            let (url, _) = configuration.server_url.as_ref().unwrap();
            url.as_written().to_owned()
        };
        assert_eq!(url(&first), url(&second));

        std::fs::write(&path, printed(&second, false)).unwrap();
        let third = load(&flags, []).unwrap();
        assert_eq!(second.settings, third.settings);
    }

    #[test]
    fn each_line_shows_the_source_of_its_value() {
        let configuration =
            load(&Flags::default(), [variable("EXEC_SERVER_MAX_SESSIONS", "7")]).unwrap();
        let text = printed(&configuration, false);
        let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap();
        assert!(line("max_sessions = 7 ").ends_with("  # EXEC_SERVER_MAX_SESSIONS"), "{text}");
        assert!(line("log = \"info\" ").ends_with("  # default"), "{text}");
        let settings = text.lines().filter(|line| line.contains(" = "));
        assert_eq!(settings.count(), SETTINGS.len());
        assert!(text.contains("\n[sandbox]\nrequire = \"none\" "), "{text}");
    }

    #[test]
    fn json_has_the_same_values() {
        let configuration =
            load(&Flags::default(), [variable("EXEC_SERVER_MAX_SESSIONS", "7")]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&printed(&configuration, true)).unwrap();
        assert_eq!(
            json["max_sessions"],
            serde_json::json!({"value": 7, "source": "EXEC_SERVER_MAX_SESSIONS"})
        );
        assert_eq!(json["allow_host"], serde_json::json!({"value": [], "source": "default"}));
        assert_eq!(json.as_object().unwrap().len(), SETTINGS.len());
    }
}
