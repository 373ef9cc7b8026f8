//! The text form of process limits in flags, settings and messages: `memory=512M`, `cpu-time=10s`.

use std::time::Duration;

use exec_server_protocol::{Cpus, LimitName, LimitValues, LimitsRequest, RequiredLimits};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitUnit {
    Bytes,
    Count,
    Time,
    Processors,
}

/// In display order.
const NAMES: [(&str, LimitName, LimitUnit); 8] = [
    ("memory", LimitName::Memory, LimitUnit::Bytes),
    ("pids", LimitName::Pids, LimitUnit::Count),
    ("cpu-time", LimitName::CpuTime, LimitUnit::Time),
    ("cpus", LimitName::Cpus, LimitUnit::Processors),
    ("wall-time", LimitName::WallTime, LimitUnit::Time),
    ("open-files", LimitName::OpenFiles, LimitUnit::Count),
    ("file-size", LimitName::FileSize, LimitUnit::Bytes),
    ("core-size", LimitName::CoreSize, LimitUnit::Bytes),
];

/// Parses one limit, `NAME=VALUE`.
pub(crate) fn parse_limit(text: &str) -> Result<LimitValues, String> {
    let names = || NAMES.map(|(name, ..)| name).join(", ");
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("expected NAME=VALUE, where NAME is one of {}", names()))?;
    let Some((_, limit, unit)) = NAMES.into_iter().find(|(known, ..)| *known == name) else {
        return Err(format!("unknown limit {name:?}; expected one of {}", names()));
    };
    let mut values = LimitValues::default();
    if unit == LimitUnit::Processors {
        let cpus = value.parse().ok().and_then(|number| Cpus::new(number).ok());
        values.cpus = Some(cpus.ok_or_else(|| format!("expected {}", unit.expected()))?);
        return Ok(values);
    }
    let number = match unit {
        LimitUnit::Bytes => parse_size(value),
        LimitUnit::Count => value.parse().ok(),
        LimitUnit::Time | LimitUnit::Processors => {
            crate::cli::values::parse_duration(value).ok().map(milliseconds)
        }
    };
    let number = number.ok_or_else(|| format!("expected {}", unit.expected()))?;
    *field_mut(&mut values, limit) = Some(number);
    values.check().map_err(|_| format!("{name} must be more than 0"))?;
    Ok(values)
}

/// The last value of each limit wins.
pub(crate) fn combined(given: &[LimitValues]) -> LimitValues {
    given.iter().fold(LimitValues::default(), |earlier, later| later.or(earlier))
}

/// Returns `None` if nothing is requested.
pub(crate) fn request(given: &[LimitValues], is_required: bool) -> Option<Box<LimitsRequest>> {
    let required = is_required.then_some(RequiredLimits::Cgroup);
    let request = LimitsRequest::new(combined(given), required);
    (request != LimitsRequest::default()).then(|| Box::new(request))
}

/// Formats all limits that are set, such as `memory 512M, pids 100`.
pub(crate) fn describe(values: &LimitValues) -> String {
    let set = NAMES.into_iter().filter_map(|(_, limit, _)| describe_one(values, limit));
    set.collect::<Vec<_>>().join(", ")
}

pub(crate) fn describe_one(values: &LimitValues, limit: LimitName) -> Option<String> {
    let (name, _, unit) = NAMES.into_iter().find(|(_, known, _)| *known == limit)?;
    let value = match unit {
        LimitUnit::Processors => values.cpus?.to_string(),
        LimitUnit::Bytes => show_size((*field_mut(&mut values.clone(), limit))?),
        LimitUnit::Count => (*field_mut(&mut values.clone(), limit))?.to_string(),
        LimitUnit::Time => {
            let millis = (*field_mut(&mut values.clone(), limit))?;
            humantime::format_duration(Duration::from_millis(millis)).to_string()
        }
    };
    Some(format!("{name} {value}"))
}

/// Returns the name of a limit on the command line.
pub(crate) fn name(limit: LimitName) -> &'static str {
    NAMES.into_iter().find(|(_, known, _)| *known == limit).map_or("unknown", |(name, ..)| name)
}

impl LimitUnit {
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Self::Bytes => "a size such as \"512M\" or \"2G\"",
            Self::Count => "a whole number",
            Self::Time => "a duration such as \"500ms\", \"30s\" or \"10m\"",
            Self::Processors => "a number of CPUs, at least 0.01, such as 1.5",
        }
    }
}

/// Parses a number of bytes with an optional unit: K, M, G and T are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Formats a size with the largest unit that is exact.
pub(crate) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Rounds up, so that a fraction of a millisecond does not become 0.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Invariant: never called for CPUs, whose field has a different type.
fn field_mut(values: &mut LimitValues, limit: LimitName) -> &mut Option<u64> {
    match limit {
        LimitName::Memory => &mut values.memory_bytes,
        LimitName::Pids => &mut values.pids,
        LimitName::CpuTime => &mut values.cpu_time_ms,
        LimitName::WallTime => &mut values.wall_time_ms,
        LimitName::OpenFiles => &mut values.open_files,
        LimitName::FileSize => &mut values.file_size_bytes,
        LimitName::CoreSize | LimitName::Cpus | LimitName::Unknown => &mut values.core_size_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shown_in_the_units_of_their_input() {
        let given = [
            "memory=512M",
            "pids=100",
            "cpu-time=10s",
            "cpus=1.5",
            "wall-time=1m",
            "open-files=64",
            "file-size=0",
            "core-size=1000",
        ];
        let given: Vec<_> = given.iter().map(|text| parse_limit(text).unwrap()).collect();
        assert_eq!(
            describe(&combined(&given)),
            "memory 512M, pids 100, cpu-time 10s, cpus 1.5, wall-time 1m, open-files 64, \
             file-size 0, core-size 1000"
        );
        let later = [given[0], parse_limit("memory=1.5G").unwrap_or(given[0])];
        assert_eq!(combined(&later).memory_bytes, Some(512 << 20));
        assert_eq!(parse_limit("cpu-time=0.0001").unwrap().cpu_time_ms, Some(1));
    }

    #[test]
    fn invalid_limits_are_refused() {
        for (text, expected) in [
            ("memory", "NAME=VALUE"),
            ("ram=1G", "unknown limit \"ram\""),
            ("memory=", "a size"),
            ("memory=-1", "a size"),
            ("memory=1X", "a size"),
            ("memory=99999999T", "a size"),
            ("memory=0", "memory must be more than 0"),
            ("pids=0", "pids must be more than 0"),
            ("pids=1.5", "a whole number"),
            ("cpu-time=soon", "a duration"),
            ("cpu-time=0s", "cpu-time must be more than 0"),
            ("cpus=0", "a number of CPUs"),
            ("cpus=NaN", "a number of CPUs"),
            ("cpus=inf", "a number of CPUs"),
            ("cpus=1e300", "a number of CPUs"),
        ] {
            let error = parse_limit(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in
            [("7", 7), ("1K", 1 << 10), ("3MiB", 3 << 20), ("2g", 2 << 30), ("0", 0)]
        {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
            assert_eq!(parse_size(&show_size(bytes)), Some(bytes));
        }
        for text in ["", "K", "1 K", "+1", "1.5G", "18446744073709551616"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
