//! Results as a table or as JSON. Knows how a number is formatted, not how it was measured.

use std::fmt;

use serde::{Serialize, Serializer};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) quick: bool,
    #[serde(rename = "measurements")]
    pub(super) rows: Vec<Row>,
}

/// One measurement. Values are in the base unit, without prefixes.
#[derive(Debug)]
pub(super) struct Row {
    name: String,
    unit: Unit,
    ours: f64,
    limit: Option<Limit>,
    target: Option<Target>,
}

/// The result to compare with, such as that of the same work without a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) value: f64,
    pub(super) is: &'static str,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Unit {
    Seconds,
    PerSecond,
    Bytes,
    BytesPerSecond,
    CpuSecondsPerGib,
    Count,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Target {
    /// Bounds of the ratio to the limit.
    RatioAtMost(f64),
    RatioAtLeast(f64),
    /// Bounds of the value itself.
    AtMost(f64),
    AtLeast(f64),
}

impl Row {
    pub(super) fn new(name: &str, unit: Unit, ours: f64) -> Self {
        Self { name: name.to_owned(), unit, ours, limit: None, target: None }
    }

    pub(super) fn limit(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Returns the ratio to the limit. `None` without a limit, or if the limit is too small to be
    /// measured.
    fn ratio(&self) -> Option<f64> {
        self.limit.map(|limit| self.ours / limit.value).filter(|ratio| ratio.is_finite())
    }

    fn is_met(&self) -> Option<bool> {
        match self.target? {
            Target::RatioAtMost(most) => self.ratio().map(|ratio| ratio <= most),
            Target::RatioAtLeast(least) => self.ratio().map(|ratio| ratio >= least),
            Target::AtMost(most) => Some(self.ours <= most),
            Target::AtLeast(least) => Some(self.ours >= least),
        }
    }

    fn cells(&self) -> [String; COLUMNS] {
        let or_nothing = |text: Option<String>| text.unwrap_or_default();
        let target = self.target.map(|target| match target {
            Target::RatioAtMost(most) => format!("≤ {most} ×"),
            Target::RatioAtLeast(least) => format!("≥ {least} ×"),
            Target::AtMost(most) => format!("≤ {}", self.unit.show(most)),
            Target::AtLeast(least) => format!("≥ {}", self.unit.show(least)),
        });
        [
            self.name.clone(),
            self.unit.show(self.ours),
            or_nothing(self.limit.map(|limit| self.unit.show(limit.value))),
            or_nothing(self.ratio().map(|ratio| format!("{ratio:.2} ×"))),
            or_nothing(target),
            or_nothing(self.is_met().map(|met| if met { "yes" } else { "NO" }.to_owned())),
            or_nothing(self.limit.map(|limit| limit.is.to_owned())),
        ]
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Seconds if value < 1e-3 => format!("{:.1} µs", value * 1e6),
            Self::Seconds => format!("{:.2} ms", value * 1e3),
            Self::PerSecond => format!("{value:.0} /s"),
            Self::Bytes if value < MIB => format!("{:.1} KiB", value / KIB),
            Self::Bytes => format!("{:.1} MiB", value / MIB),
            Self::BytesPerSecond => format!("{:.0} MiB/s", value / MIB),
            Self::CpuSecondsPerGib => format!("{value:.2} s/GiB"),
            Self::Count => format!("{value:.0}"),
        }
    }
}

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;

const COLUMNS: usize = 7;
const HEADINGS: [&str; COLUMNS] =
    ["measurement", "measured", "limit", "ratio", "target", "met", "the limit is"];
const RIGHT_ALIGNED: std::ops::Range<usize> = 1..5;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![HEADINGS.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        });
        for line in &lines {
            let mut text = String::new();
            for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
                text += &match RIGHT_ALIGNED.contains(&column) {
                    true => format!("{cell:>width$}  "),
                    false => format!("{cell:<width$}  "),
                };
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Flat<'a> {
            measurement: &'a str,
            unit: Unit,
            ours: f64,
            limit: Option<f64>,
            limit_is: Option<&'static str>,
            ratio: Option<f64>,
            target: Option<Target>,
            met: Option<bool>,
        }
        let flat = Flat {
            measurement: &self.name,
            unit: self.unit,
            ours: self.ours,
            limit: self.limit.map(|limit| limit.value),
            limit_is: self.limit.map(|limit| limit.is),
            ratio: self.ratio(),
            target: self.target,
            met: self.is_met(),
        };
        flat.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let limit = Limit { value: 0.001, is: "bare" };
        Report {
            quick: true,
            rows: vec![
                Row::new("latency", Unit::Seconds, 0.0015)
                    .limit(limit)
                    .target(Target::RatioAtMost(1.8)),
                Row::new("throughput", Unit::BytesPerSecond, 10.0 * MIB)
                    .limit(Limit { value: 100.0 * MIB, is: "bare pipe" })
                    .target(Target::RatioAtLeast(0.35)),
                Row::new("memory", Unit::Bytes, 9.5 * MIB).target(Target::AtMost(10.0 * MIB)),
                Row::new("routed", Unit::BytesPerSecond, 900.0 * MIB)
                    .target(Target::AtLeast(500.0 * MIB)),
                Row::new("untargeted", Unit::Seconds, 25e-6).limit(limit),
            ],
        }
    }

    #[test]
    fn the_table_is_aligned_and_shows_whether_targets_are_met() {
        let expected = "\
measurement   measured      limit   ratio       target  met  the limit is
latency        1.50 ms    1.00 ms  1.50 ×      ≤ 1.8 ×  yes  bare
throughput    10 MiB/s  100 MiB/s  0.10 ×     ≥ 0.35 ×  NO   bare pipe
memory         9.5 MiB                      ≤ 10.0 MiB  yes
routed       900 MiB/s                     ≥ 500 MiB/s  yes
untargeted     25.0 µs    1.00 ms  0.03 ×                    bare
";
        assert_eq!(report().to_string(), expected);
    }

    #[test]
    fn json_has_the_same_results() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["quick"], true);
        let latency = &json["measurements"][0];
        assert_eq!(latency["measurement"], "latency");
        assert_eq!(latency["unit"], "seconds");
        assert_eq!(latency["limitIs"], "bare");
        assert_eq!(latency["target"]["ratioAtMost"], 1.8);
        assert_eq!(latency["met"], true);
        assert_eq!(json["measurements"][1]["met"], false);
        assert!(json["measurements"][2]["limit"].is_null());
        assert_eq!(json["measurements"][3]["met"], true);
        assert!(json["measurements"][4]["met"].is_null());
    }

    #[test]
    fn a_limit_too_small_to_measure_has_no_ratio() {
        let row = Row::new("cpu", Unit::CpuSecondsPerGib, 2.0)
            .limit(Limit { value: 0.0, is: "bare" })
            .target(Target::RatioAtMost(1.0));
        assert_eq!((row.ratio(), row.is_met()), (None, None));
    }
}
