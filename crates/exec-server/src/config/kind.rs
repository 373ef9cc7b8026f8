//! The kinds of values: what each accepts, from text or TOML, and how it is shown. Knows neither
//! which settings exist nor the source of a value.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use exec_server_protocol::Cpus;
use exec_server_server::SandboxLevel;
use thiserror::Error;
use toml::de::DeValue;

use super::Settings;
use crate::environment::limit_options::{LimitUnit, parse_size, show_size};
use crate::program::logging::LogFormat;

pub(super) struct Field<T> {
    pub(super) get: fn(&Settings) -> &T,
    pub(super) get_mut: fn(&mut Settings) -> &mut T,
}

/// The values that a setting accepts, and the field that holds the value.
#[derive(Debug)]
pub(super) enum Kind {
    Text {
        field: Field<String>,
        expected: &'static str,
        check: fn(&str) -> Result<(), String>,
    },
    List {
        field: Field<Vec<String>>,
        example: &'static str,
        check: fn(&str) -> Result<(), String>,
    },
    /// A list of at least one item. A single item needs no brackets.
    OneOrMore {
        field: Field<Vec<String>>,
        expected: &'static str,
        check: fn(&str) -> Result<(), String>,
    },
    /// Absolute paths on the server's machine; they need not exist yet.
    Paths {
        field: Field<Vec<PathBuf>>,
        example: &'static str,
    },
    /// A list for which empty and absent differ.
    OptionalList {
        field: Field<Option<Vec<String>>>,
        example: &'static str,
        check: fn(&str) -> Result<(), String>,
    },
    Count(Field<usize>),
    Positive(Field<usize>),
    Bytes(Field<u64>),
    /// A count; 0 means no limit.
    Rate(Field<u32>),
    Duration(Field<Duration>),
    Seconds(Field<Duration>),
    Milliseconds(Field<Duration>),
    Switch(Field<bool>),
    LogFormat(Field<LogFormat>),
    SandboxLevel(Field<Option<SandboxLevel>>),
    /// A number of bytes, a count, or milliseconds written as a duration.
    Limit {
        field: Field<Option<u64>>,
        unit: LimitUnit,
        least: u64,
    },
    Cpus(Field<Option<Cpus>>),
}

/// A value as written. Flags and variables are text; only the file has types.
#[derive(Debug, Clone, Copy)]
pub(super) enum Raw<'a> {
    Text(&'a str),
    Toml(&'a DeValue<'a>),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum Mismatch {
    #[error("expected {expected}, found {found}")]
    Unexpected { expected: String, found: String },
    /// The reason of the check that refused the value.
    #[error("{0}")]
    Refused(String),
}

/// Long enough for any use, and short enough that adding it to the clock cannot overflow.
const LONGEST_DAYS: u64 = 365;
const LONGEST: Duration = Duration::from_secs(LONGEST_DAYS * 24 * 60 * 60);

const SANDBOX_LEVELS: [(&str, Option<SandboxLevel>); 3] = [
    ("read-only", Some(SandboxLevel::ReadOnly)),
    ("workspace-write", Some(SandboxLevel::WorkspaceWrite)),
    ("none", None),
];

impl Kind {
    /// Whether the flag may be given without a value, which means `true`.
    pub(super) fn is_switch(&self) -> bool {
        matches!(self, Self::Switch(_))
    }

    /// Returns the separator of a list in text form; for paths, that of `PATH`.
    pub(super) fn separator(&self) -> Option<char> {
        match self {
            Self::List { .. } | Self::OptionalList { .. } | Self::OneOrMore { .. } => Some(','),
            Self::Paths { .. } => Some(':'),
            _ => None,
        }
    }

    /// On error the settings are unchanged.
    pub(super) fn assign(&self, settings: &mut Settings, raw: Raw<'_>) -> Result<(), Mismatch> {
        let accepted = match self {
            Self::Text { field, check, .. } => {
                if let Some(text) = raw.text() {
                    check(text).map_err(Mismatch::Refused)?;
                }
                field.put(settings, raw.text().map(str::to_owned))
            }
            Self::List { field, check, .. } => field.put(settings, raw.checked_list(*check)?),
            Self::OptionalList { field, check, .. } => {
                field.put(settings, raw.checked_list(*check)?.map(Some))
            }
            Self::OneOrMore { field, check, .. } => {
                let one = raw.text().filter(|_| matches!(raw, Raw::Toml(_)));
                let items = one.map(|one| vec![one.to_owned()]).or_else(|| raw.list());
                for item in items.iter().flatten() {
                    check(item).map_err(Mismatch::Refused)?;
                }
                field.put(settings, items.filter(|items| !items.is_empty()))
            }
            Self::Paths { field, .. } => {
                let checked =
                    |texts: Vec<String>| texts.iter().map(|text| exact_path(text)).collect();
                field.put(settings, raw.paths().map(checked).transpose()?)
            }
            Self::Count(field) => field.put(settings, raw.count()),
            Self::Positive(field) => field.put(settings, raw.count().filter(|count| *count > 0)),
            Self::Bytes(field) => field.put(settings, raw.whole_number()),
            Self::Rate(field) => {
                field.put(settings, raw.whole_number().and_then(|rate| rate.try_into().ok()))
            }
            Self::Duration(field) => field.put(settings, raw.duration()),
            Self::Seconds(field) => {
                let period = raw.whole_number().map(Duration::from_secs);
                field.put(settings, period.filter(|period| *period <= LONGEST))
            }
            Self::Milliseconds(field) => {
                let period = raw.whole_number().map(Duration::from_millis);
                field.put(settings, period.filter(|period| *period <= LONGEST))
            }
            Self::Switch(field) => field.put(settings, raw.boolean()),
            Self::LogFormat(field) => {
                field.put(settings, raw.text().and_then(|name| name.parse().ok()))
            }
            Self::SandboxLevel(field) => {
                let named = |name| SANDBOX_LEVELS.iter().find(|(known, _)| *known == name);
                field.put(settings, raw.text().and_then(named).map(|(_, level)| *level))
            }
            Self::Limit { field, unit, least } => {
                let number = match unit {
                    LimitUnit::Bytes => raw.size(),
                    LimitUnit::Time => {
                        raw.duration().and_then(|time| time.as_millis().try_into().ok())
                    }
                    LimitUnit::Count | LimitUnit::Processors => raw.whole_number(),
                };
                field.put(settings, number.filter(|number| number >= least).map(Some))
            }
            Self::Cpus(field) => field.put(settings, raw.cpus().map(Some)),
        };
        if accepted {
            Ok(())
        } else {
            Err(Mismatch::Unexpected { expected: self.expected(), found: raw.to_string() })
        }
    }

    /// Whether the field has a value. Without one, [`Self::show`] returns a placeholder, which must
    /// not be assigned.
    pub(super) fn is_given(&self, settings: &Settings) -> bool {
        match self {
            Self::OptionalList { field, .. } => field.of(settings).is_some(),
            Self::Limit { field, .. } => field.of(settings).is_some(),
            Self::Cpus(field) => field.of(settings).is_some(),
            _ => true,
        }
    }

    /// Invariant: if [`Self::is_given`], assigning the shown value changes nothing.
    pub(super) fn show(&self, settings: &Settings) -> toml::Value {
        match self {
            Self::Text { field, .. } => field.of(settings).as_str().into(),
            Self::List { field, .. } => field.of(settings).clone().into(),
            Self::OptionalList { field, .. } => {
                field.of(settings).clone().unwrap_or_default().into()
            }
            Self::OneOrMore { field, .. } => match &field.of(settings)[..] {
                [one] => one.as_str().into(),
                many => many.to_vec().into(),
            },
            Self::Rate(field) => integer(*field.of(settings)),
            Self::Seconds(field) => integer(field.of(settings).as_secs()),
            Self::Count(field) | Self::Positive(field) => integer(*field.of(settings)),
            Self::Bytes(field) => integer(*field.of(settings)),
            Self::Duration(field) => duration(*field.of(settings)).into(),
            Self::Milliseconds(field) => integer(field.of(settings).as_millis()),
            Self::Switch(field) => (*field.of(settings)).into(),
            Self::LogFormat(field) => field.of(settings).as_str().into(),
            Self::Paths { field, .. } => {
                // The paths came from text, so the conversion is lossless.
                let paths = field.of(settings).iter().map(|path| path.to_string_lossy());
                paths.map(|path| toml::Value::from(&*path)).collect::<Vec<_>>().into()
            }
            Self::SandboxLevel(field) => {
                let level = field.of(settings);
                let named = SANDBOX_LEVELS.iter().find(|(_, known)| known == level);
                named.map_or("none", |(name, _)| *name).into()
            }
            Self::Limit { field, unit, .. } => match (*field.of(settings), unit) {
                (None, _) => "".into(),
                (Some(bytes), LimitUnit::Bytes) => show_size(bytes).into(),
                (Some(millis), LimitUnit::Time) => duration(Duration::from_millis(millis)).into(),
                (Some(count), LimitUnit::Count | LimitUnit::Processors) => integer(count),
            },
            Self::Cpus(field) => match field.of(settings) {
                None => "".into(),
                Some(cpus) => (f64::from(cpus.thousandths()) / 1000.0).into(),
            },
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Text { expected, .. } | Self::OneOrMore { expected, .. } => {
                (*expected).to_owned()
            }
            Self::List { example, .. } | Self::OptionalList { example, .. } => {
                format!("a list of strings such as [{example:?}]")
            }
            Self::Count(_) | Self::Rate(_) => "a whole number".to_owned(),
            Self::Seconds(_) => {
                format!("a whole number of seconds, at most {}", LONGEST.as_secs())
            }
            Self::Positive(_) => "a whole number of at least 1".to_owned(),
            Self::Bytes(_) => "a whole number of bytes".to_owned(),
            Self::Duration(_) => format!(
                "a duration with its unit, such as \"30s\", \"10m\" or \"24h\", of at most {LONGEST_DAYS} days"
            ),
            Self::Milliseconds(_) => {
                format!("a whole number of milliseconds, at most {}", LONGEST.as_millis())
            }
            Self::Switch(_) => "true or false".to_owned(),
            Self::LogFormat(_) => LogFormat::ALL.map(LogFormat::as_str).join(" or "),
            Self::Paths { example, .. } => {
                format!("a list of absolute paths such as [{example:?}]")
            }
            Self::SandboxLevel(_) => {
                SANDBOX_LEVELS.map(|(name, _)| format!("{name:?}")).join(" or ")
            }
            Self::Limit { unit, least: 0, .. } => unit.expected().to_owned(),
            Self::Limit { unit, .. } => format!("{}, more than 0", unit.expected()),
            Self::Cpus(_) => LimitUnit::Processors.expected().to_owned(),
        }
    }
}

impl<T> Field<T> {
    fn of<'a>(&self, settings: &'a Settings) -> &'a T {
        (self.get)(settings)
    }

    fn put(&self, settings: &mut Settings, value: Option<T>) -> bool {
        value.map(|value| *(self.get_mut)(settings) = value).is_some()
    }
}

impl<T> fmt::Debug for Field<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Field")
    }
}

impl<'a> Raw<'a> {
    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Toml(value) => value.as_str(),
        }
    }

    fn checked_list(
        self,
        check: fn(&str) -> Result<(), String>,
    ) -> Result<Option<Vec<String>>, Mismatch> {
        let items = self.list();
        for item in items.iter().flatten() {
            check(item).map_err(Mismatch::Refused)?;
        }
        Ok(items)
    }

    fn list(self) -> Option<Vec<String>> {
        match self {
            Self::Text(text) => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Some(items.map(str::to_owned).collect())
            }
            Self::Toml(value) => {
                let items = value.as_array()?.iter().map(|item| item.get_ref().as_str());
                items
                    .map(|item| item.filter(|item| !item.trim().is_empty()).map(str::to_owned))
                    .collect()
            }
        }
    }

    /// Splits a list of paths. Keeps empty items, so that an empty path is refused rather than
    /// ignored.
    fn paths(self) -> Option<Vec<String>> {
        match self {
            Self::Text(text) => Some(text.split(':').map(str::to_owned).collect()),
            Self::Toml(_) => self.list(),
        }
    }

    /// Invariant: at most `i64::MAX`, the largest integer of TOML.
    fn whole_number(self) -> Option<u64> {
        let number = match self {
            Self::Text(text) => text.parse().ok()?,
            Self::Toml(value) => {
                let digits = value.as_integer()?;
                i64::from_str_radix(digits.as_str(), digits.radix()).ok()?
            }
        };
        u64::try_from(number).ok()
    }

    /// Parses a number of bytes, or text with a unit. At most `i64::MAX`.
    fn size(self) -> Option<u64> {
        let bytes = match self.text() {
            Some(text) => parse_size(text)?,
            None => self.whole_number()?,
        };
        i64::try_from(bytes).is_ok().then_some(bytes)
    }

    fn cpus(self) -> Option<Cpus> {
        let number = match self {
            Self::Text(text) => text.parse().ok()?,
            Self::Toml(DeValue::Float(number)) => number.as_str().parse().ok()?,
            Self::Toml(_) => u32::try_from(self.whole_number()?).ok()?.into(),
        };
        Cpus::new(number).ok()
    }

    fn count(self) -> Option<usize> {
        usize::try_from(self.whole_number()?).ok()
    }

    fn boolean(self) -> Option<bool> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Toml(value) => value.as_bool(),
        }
    }

    fn duration(self) -> Option<Duration> {
        let text = self.text()?;
        // humantime accepts a lone "0". Here every duration has a unit, in every layer.
        if !text.contains(char::is_alphabetic) {
            return None;
        }
        let duration = humantime::parse_duration(text).ok()?;
        (duration <= LONGEST).then_some(duration)
    }
}

/// Accepts only an absolute path without `..`: its meaning depends neither on the working directory
/// nor on the parent of a symlink's target.
fn exact_path(text: &str) -> Result<PathBuf, Mismatch> {
    let path = Path::new(text);
    let refused = |reason: &str| Err(Mismatch::Refused(format!("{text:?} {reason}")));
    if !path.is_absolute() {
        return refused("is not an absolute path");
    }
    if path.components().any(|component| component == Component::ParentDir) {
        return refused("must not contain \"..\"");
    }
    if text.contains('\0') {
        return refused("must not contain NUL");
    }
    Ok(path.to_owned())
}

/// Formats the value on one line, shortened for an error message.
impl fmt::Display for Raw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST_SHOWN: usize = 60;
        let whole = match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Toml(value) => written(value),
        };
        match whole.char_indices().nth(LONGEST_SHOWN) {
            Some((end, _)) => write!(f, "{}…", &whole[..end]),
            None => f.write_str(&whole),
        }
    }
}

fn written(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(moment) => moment.to_string(),
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| written(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// Formats long durations in days. humantime's month is a twelfth of a solar year, which is not a
/// round number of days.
fn duration(whole: Duration) -> String {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const SHORTEST_MONTH: u64 = 30;
    let days = whole.as_secs() / DAY.as_secs();
    if days < SHORTEST_MONTH {
        return humantime::format_duration(whole).to_string();
    }
    match whole - Duration::from_secs(days * DAY.as_secs()) {
        Duration::ZERO => format!("{days}days"),
        rest => format!("{days}days {}", humantime::format_duration(rest)),
    }
}

fn integer(number: impl TryInto<i64>) -> toml::Value {
    toml::Value::Integer(number.try_into().unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SETTINGS, Setting};

    fn setting(key: &str) -> &'static Setting {
        SETTINGS.iter().find(|setting| setting.key == key).unwrap()
    }

    fn assign_text(key: &str, text: &str) -> Result<toml::Value, String> {
        let mut settings = Settings::default();
        let outcome = setting(key).kind().assign(&mut settings, Raw::Text(text));
        outcome.map_err(|mismatch| mismatch.to_string())?;
        Ok(setting(key).show(&settings))
    }

    fn assign_toml(key: &str, literal: &str) -> Result<toml::Value, String> {
        let mut settings = Settings::default();
        let value = DeValue::parse(literal).unwrap();
        let outcome = setting(key).kind().assign(&mut settings, Raw::Toml(value.get_ref()));
        outcome.map_err(|mismatch| mismatch.to_string())?;
        Ok(setting(key).show(&settings))
    }

    #[test]
    fn durations_need_a_unit_in_every_layer() {
        let hint = "expected a duration with its unit, such as \"30s\", \"10m\" or \"24h\", of at most 365 days";
        let key = "detached_session_ttl";
        assert_eq!(assign_toml(key, "\"90s\""), Ok("1m 30s".into()));
        assert_eq!(assign_text(key, "0s"), Ok("0s".into()));
        assert_eq!(assign_text(key, "365d"), Ok("365days".into()));
        assert_eq!(assign_text(key, "8761h 1s"), Err(format!("{hint}, found \"8761h 1s\"")));
        assert_eq!(assign_text(key, "8000h 1s"), Ok("333days 8h 1s".into()));
        assert_eq!(assign_toml(key, "30"), Err(format!("{hint}, found 30")));
        assert_eq!(assign_text(key, "30"), Err(format!("{hint}, found \"30\"")));
        assert_eq!(assign_text(key, "0"), Err(format!("{hint}, found \"0\"")));
        assert_eq!(assign_text(key, "2 years"), Err(format!("{hint}, found \"2 years\"")));
        assert_eq!(assign_text(key, "-1s"), Err(format!("{hint}, found \"-1s\"")));
    }

    #[test]
    fn numbers_have_bounds() {
        let key = "concurrent_requests";
        assert_eq!(assign_toml(key, "0x1_0"), Ok(16.into()));
        let expected = "expected a whole number of at least 1";
        for (literal, found) in
            [("0", "0"), ("-1", "-1"), ("1.5", "1.5"), ("\"4\"", "\"4\""), ("true", "true")]
        {
            assert_eq!(assign_toml(key, literal), Err(format!("{expected}, found {found}")));
        }
        assert_eq!(assign_text(key, "many"), Err(format!("{expected}, found \"many\"")));
        assert_eq!(assign_text(key, ""), Err(format!("{expected}, found \"\"")));

        let key = "spill_output_bytes_per_process";
        assert_eq!(assign_text(key, "9223372036854775807"), Ok(i64::MAX.into()));
        assert!(assign_text(key, "9223372036854775808").is_err());
        assert!(assign_toml(key, "99999999999999999999").is_err());
        assert!(assign_text("shutdown_grace_period_ms", "9223372036854775807").is_err());
    }

    #[test]
    fn limits_have_units() {
        assert_eq!(assign_text("limits.max_memory", "512M"), Ok("512M".into()));
        assert_eq!(assign_toml("limits.max_memory", "1073741824"), Ok("1G".into()));
        assert_eq!(assign_text("limits.default_cpu_time", "90s"), Ok("1m 30s".into()));
        assert_eq!(assign_toml("limits.max_cpus", "1.5"), Ok(1.5.into()));
        assert_eq!(assign_toml("limits.max_cpus", "2"), Ok(2.0.into()));
        assert_eq!(assign_text("limits.max_core_size", "0"), Ok("0".into()));
        for (key, text) in [
            ("limits.max_memory", "0"),
            ("limits.max_memory", "-1"),
            ("limits.max_memory", "8388608T"),
            ("limits.max_pids", "0"),
            ("limits.max_pids", ""),
            ("limits.max_cpu_time", "0s"),
            ("limits.max_cpu_time", "10"),
            ("limits.max_cpus", "0"),
            ("limits.max_cpus", "nan"),
            ("limits.max_cpus", "1e300"),
        ] {
            assert!(assign_text(key, text).is_err(), "{key} = {text}");
        }
    }

    #[test]
    fn lists_are_arrays_in_the_file_and_comma_separated_elsewhere() {
        let key = "allow_host";
        assert_eq!(assign_text(key, " a, b ,,"), Ok(vec!["a", "b"].into()));
        assert_eq!(assign_text(key, ""), Ok(toml::Value::Array(Vec::new())));
        assert_eq!(assign_toml(key, "[\"a\", \"b\"]"), Ok(vec!["a", "b"].into()));
        let expected = "expected a list of strings such as [\"devbox.example\"]";
        for (literal, found) in [
            ("\"a\"", "\"a\""),
            ("[\"a\", 3]", "[\"a\", 3]"),
            ("[\"\"]", "[\"\"]"),
            ("{ a = 1 }", "a table"),
        ] {
            assert_eq!(assign_toml(key, literal), Err(format!("{expected}, found {found}")));
        }
    }

    #[test]
    fn other_kinds_are_checked() {
        assert_eq!(
            assign_text("allow_direct_exec", "yes"),
            Err("expected true or false, found \"yes\"".to_owned())
        );
        assert_eq!(
            assign_text("log_format", "xml"),
            Err("expected human or json, found \"xml\"".to_owned())
        );
        assert!(assign_text("log", "exec_server=loud").is_err());
        assert!(assign_text("listen", "").is_err());
        assert!(assign_text("listen", "ws://127.0.0.1:0\nx").is_err());
        let two = "unix:///a, wss://0.0.0.0:1";
        let listed = toml::Value::from(vec!["unix:///a", "wss://0.0.0.0:1"]);
        assert_eq!(assign_text("listen", two), Ok(listed.clone()));
        assert_eq!(assign_toml("listen", r#"["unix:///a", "wss://0.0.0.0:1"]"#), Ok(listed));
        assert_eq!(assign_toml("listen", r#"["stdio"]"#), Ok("stdio".into()));
        assert!(assign_toml("listen", "[]").is_err());
        let expected = "expected a whole number of seconds, at most 31536000, found \"-1\"";
        assert_eq!(assign_text("ws_max_clock_skew_seconds", "-1"), Err(expected.to_owned()));
    }

    #[test]
    fn the_found_value_is_shown_on_one_short_line() {
        let error = assign_text("max_sessions", &"é\n".repeat(1000)).unwrap_err();
        assert!(!error.contains('\n'));
        assert!(error.chars().count() < 120, "{error}");
    }
}
