//! Limits of one process and everything it starts: as stated by a request, an operator or a token,
//! and as reported by the server.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::misspelt::CaseChecked;
use crate::nullable;

/// Upper bounds for a process and everything it starts. An absent value means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self")]
pub struct LimitValues {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time_ms: Option<u64>,
    /// Number of processors kept busy on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_time_ms: Option<u64>,
    /// Applies to each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Applies to each file that a process writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    /// Applies to each core file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_size_bytes: Option<u64>,
}

impl LimitValues {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the limits of `self`, and those of `other` that `self` does not set.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.or(other.memory_bytes),
            pids: self.pids.or(other.pids),
            cpu_time_ms: self.cpu_time_ms.or(other.cpu_time_ms),
            cpus: self.cpus.or(other.cpus),
            wall_time_ms: self.wall_time_ms.or(other.wall_time_ms),
            open_files: self.open_files.or(other.open_files),
            file_size_bytes: self.file_size_bytes.or(other.file_size_bytes),
            core_size_bytes: self.core_size_bytes.or(other.core_size_bytes),
        }
    }

    /// Returns the lower value of each limit.
    #[must_use]
    pub fn lowered_to(self, ceiling: Self) -> Self {
        fn lower<T: Ord>(limit: Option<T>, ceiling: Option<T>) -> Option<T> {
            match (limit, ceiling) {
                (Some(limit), Some(ceiling)) => Some(limit.min(ceiling)),
                (limit, ceiling) => limit.or(ceiling),
            }
        }
        Self {
            memory_bytes: lower(self.memory_bytes, ceiling.memory_bytes),
            pids: lower(self.pids, ceiling.pids),
            cpu_time_ms: lower(self.cpu_time_ms, ceiling.cpu_time_ms),
            cpus: lower(self.cpus, ceiling.cpus),
            wall_time_ms: lower(self.wall_time_ms, ceiling.wall_time_ms),
            open_files: lower(self.open_files, ceiling.open_files),
            file_size_bytes: lower(self.file_size_bytes, ceiling.file_size_bytes),
            core_size_bytes: lower(self.core_size_bytes, ceiling.core_size_bytes),
        }
    }

    /// Refuses values of 0 under which no program could run.
    pub fn check(&self) -> Result<(), LimitTooLow> {
        let values = [
            ("memoryBytes", self.memory_bytes),
            ("pids", self.pids),
            ("cpuTimeMs", self.cpu_time_ms),
            ("wallTimeMs", self.wall_time_ms),
            ("openFiles", self.open_files),
        ];
        match values.into_iter().find(|(_, value)| *value == Some(0)) {
            Some((name, _)) => Err(LimitTooLow { name }),
            None => Ok(()),
        }
    }
}

/// Deserializes from objects only: serde would also accept a list of the members in order.
macro_rules! read_from_objects {
    ($($type:ident)*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::deserialize(CaseChecked(deserializer))
            }
        }
    )*};
}

read_from_objects!(LimitValues LimitsRequest);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limit {name} must be at least 1")]
pub struct LimitTooLow {
    pub name: &'static str,
}

/// `limits` of `process/start` (extension). An unknown member is an error, since ignoring it would
/// leave its resource unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self")]
pub struct LimitsRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_time_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_size_bytes: Option<u64>,
    /// Refuse the start if the server's enforcement is weaker than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<RequiredLimits>,
}

impl LimitsRequest {
    #[must_use]
    pub fn new(values: LimitValues, required: Option<RequiredLimits>) -> Self {
        let LimitValues {
            memory_bytes,
            pids,
            cpu_time_ms,
            cpus,
            wall_time_ms,
            open_files,
            file_size_bytes,
            core_size_bytes,
        } = values;
        Self {
            memory_bytes,
            pids,
            cpu_time_ms,
            cpus,
            wall_time_ms,
            open_files,
            file_size_bytes,
            core_size_bytes,
            required,
        }
    }

    #[must_use]
    pub fn values(&self) -> LimitValues {
        let Self {
            memory_bytes,
            pids,
            cpu_time_ms,
            cpus,
            wall_time_ms,
            open_files,
            file_size_bytes,
            core_size_bytes,
            required: _,
        } = *self;
        LimitValues {
            memory_bytes,
            pids,
            cpu_time_ms,
            cpus,
            wall_time_ms,
            open_files,
            file_size_bytes,
            core_size_bytes,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RequiredLimits {
    /// The kernel limits the whole process tree: tier `cgroup` or `systemd`.
    Cgroup,
}

/// How the limits of a whole process tree are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LimitsTier {
    /// A cgroup owned by the server.
    Cgroup,
    /// A cgroup in a scope of the user's service manager.
    Systemd,
    /// Rlimits of each process and, if the server has keepers, periodic inspection of the tree.
    Rlimit,
}

impl LimitsTier {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Systemd => "systemd",
            Self::Rlimit => "rlimit",
        }
    }
}

/// The limits of a process, from the request, the token and the operator, and how the server
/// enforces them (extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EffectiveLimits {
    pub tier: LimitsTier,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_time_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_size_bytes: Option<u64>,
    /// The limits in this object that the server cannot enforce.
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub not_enforced: Vec<LimitName>,
}

impl EffectiveLimits {
    #[must_use]
    pub fn new(tier: LimitsTier, values: LimitValues, not_enforced: Vec<LimitName>) -> Self {
        let LimitValues {
            memory_bytes,
            pids,
            cpu_time_ms,
            cpus,
            wall_time_ms,
            open_files,
            file_size_bytes,
            core_size_bytes,
        } = values;
        Self {
            tier,
            memory_bytes,
            pids,
            cpu_time_ms,
            cpus,
            wall_time_ms,
            open_files,
            file_size_bytes,
            core_size_bytes,
            not_enforced,
        }
    }

    #[must_use]
    pub fn values(&self) -> LimitValues {
        LimitValues {
            memory_bytes: self.memory_bytes,
            pids: self.pids,
            cpu_time_ms: self.cpu_time_ms,
            cpus: self.cpus,
            wall_time_ms: self.wall_time_ms,
            open_files: self.open_files,
            file_size_bytes: self.file_size_bytes,
            core_size_bytes: self.core_size_bytes,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitName {
    Memory,
    Pids,
    CpuTime,
    Cpus,
    WallTime,
    OpenFiles,
    FileSize,
    CoreSize,
    /// A name from a later version.
    #[serde(other)]
    Unknown,
}

/// A number of processors, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus(u32);

impl Cpus {
    const MIN: f64 = 0.01;
    const MAX: f64 = 1_000_000.0;

    /// Rounds to thousandths.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range has been checked"
    )]
    pub fn new(processors: f64) -> Result<Self, CpusError> {
        if (Self::MIN..=Self::MAX).contains(&processors) {
            Ok(Self((processors * 1000.0).round() as u32))
        } else {
            Err(CpusError)
        }
    }

    #[must_use]
    pub const fn thousandths(self) -> u32 {
        self.0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cpus must be a number from 0.01 to 1000000")]
pub struct CpusError;

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.0) / 1000.0).fmt(f)
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 1000 {
            0 => serializer.serialize_u32(self.0 / 1000),
            _ => serializer.serialize_f64(f64::from(self.0) / 1000.0),
        }
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<LimitsRequest, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn absent_and_null_limits_are_none() {
        assert_eq!(request("{}").unwrap(), LimitsRequest::default());
        let nulls = r#"{"memoryBytes":null,"pids":null,"cpus":null,"required":null}"#;
        assert_eq!(request(nulls).unwrap(), LimitsRequest::default());
    }

    #[test]
    fn a_request_round_trips() {
        let text = r#"{"memoryBytes":1,"pids":2,"cpuTimeMs":3,"cpus":1.5,"wallTimeMs":4,"openFiles":5,"fileSizeBytes":0,"coreSizeBytes":0,"required":"cgroup"}"#;
        let read = request(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(LimitsRequest::new(read.values(), read.required), read);
        assert_eq!(read.values().check(), Ok(()));
        let whole = serde_json::to_string(&Cpus::new(2.0).unwrap()).unwrap();
        assert_eq!(whole, "2");
    }

    #[test]
    fn hostile_values_are_refused_or_harmless() {
        for text in [
            r#"{"memory":1}"#,
            r#"{"memorybytes":1}"#,
            r#"{"memoryBytes":-1}"#,
            r#"{"memoryBytes":1.5}"#,
            r#"{"memoryBytes":"1"}"#,
            r#"{"memoryBytes":18446744073709551616}"#,
            r#"{"cpus":0}"#,
            r#"{"cpus":-1}"#,
            r#"{"cpus":1e300}"#,
            r#"{"cpus":1e999}"#,
            r#"{"cpus":NaN}"#,
            r#"{"cpus":"1"}"#,
            r#"{"required":"best"}"#,
            "[1]",
            "[]",
            "7",
        ] {
            assert!(request(text).is_err(), "{text}");
        }
        let largest =
            request(r#"{"memoryBytes":18446744073709551615,"pids":18446744073709551615}"#);
        assert_eq!(largest.unwrap().values().check(), Ok(()));
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-9] {
            assert!(Cpus::new(number).is_err(), "{number}");
        }
        for name in ["memoryBytes", "pids", "cpuTimeMs", "wallTimeMs", "openFiles"] {
            let zero = request(&format!("{{{name:?}:0}}")).unwrap();
            assert_eq!(zero.values().check(), Err(LimitTooLow { name }));
        }
    }

    #[test]
    fn the_lowest_limit_holds_and_a_default_fills_gaps() {
        let limits = |memory_bytes, pids| LimitValues { memory_bytes, pids, ..<_>::default() };
        let asked = limits(Some(8), None);
        let default = limits(Some(1), Some(1));
        let ceiling =
            LimitValues { cpus: Some(Cpus::new(1.0).unwrap()), ..limits(Some(4), Some(9)) };
        let effective = asked.or(default).lowered_to(ceiling);
        assert_eq!(effective, LimitValues { cpus: ceiling.cpus, ..limits(Some(4), Some(1)) });
        assert_eq!(LimitValues::default().lowered_to(ceiling), ceiling);
        assert!(LimitValues::default().lowered_to(LimitValues::default()).is_empty());
    }

    #[test]
    fn unknown_limit_names_are_accepted() {
        let names: Vec<LimitName> = serde_json::from_str(r#"["memory","quantum"]"#).unwrap();
        assert_eq!(names, [LimitName::Memory, LimitName::Unknown]);
    }
}
