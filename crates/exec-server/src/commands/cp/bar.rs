//! The progress line of a copy, for a terminal of any width.

use std::time::Duration;

use super::progress::per_second;

#[derive(Debug, Clone, Default)]
pub(super) struct ProgressLine {
    /// The number of entries in the directories listed so far. Shown until a file to copy is known.
    pub(super) found: u64,
    pub(super) files: u64,
    pub(super) all_files: u64,
    pub(super) bytes: u64,
    pub(super) all_bytes: u64,
    pub(super) transferred: u64,
    /// Bytes per second.
    pub(super) rate: u64,
    pub(super) name: String,
}

/// The shortest part of a name that is worth showing, in columns.
const SHORTEST_NAME: usize = 8;

impl ProgressLine {
    /// Returns a line of at most `columns`, omitting the less important parts.
    pub(super) fn line(&self, columns: usize) -> String {
        if self.all_files == 0 {
            return fitting(&[format!("{} found", self.found)], columns);
        }
        let mut parts = vec![format!("{:>3}%", self.percent())];
        if self.all_files > 1 {
            parts.push(format!("{}/{} files", self.files, self.all_files));
        }
        parts.push(format!("{}/s", size(self.rate)));
        if let Some(left) = self.time_left() {
            parts.push(format!("ETA {}", clock(left)));
        }
        parts.push(format!("{} of {}", size(self.bytes), size(self.all_bytes)));
        let mut line = fitting(&parts, columns);
        let room = columns.saturating_sub(width(&line) + 2);
        if room >= SHORTEST_NAME {
            line = format!("{line}  {}", end_of(&self.name, room));
        }
        line
    }

    /// Returns the summary of a finished copy.
    pub(super) fn done(&self, elapsed: Duration) -> String {
        let files = if self.files == 1 { "file" } else { "files" };
        format!(
            "{} {files}, {} in {:.1} s ({}/s)",
            self.files,
            size(self.bytes),
            elapsed.as_secs_f64(),
            size(per_second(self.transferred, elapsed)),
        )
    }

    fn percent(&self) -> u64 {
        let (part, all) = match self.all_bytes {
            0 => (self.files, self.all_files),
            all => (self.bytes, all),
        };
        let percent = u128::from(part) * 100 / u128::from(all.max(1));
        u64::try_from(percent.min(100)).unwrap_or(100)
    }

    fn time_left(&self) -> Option<Duration> {
        let left = self.all_bytes.saturating_sub(self.bytes);
        (self.rate > 0).then(|| Duration::from_secs(left.div_ceil(self.rate)))
    }
}

fn fitting(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { "  " };
        if width(&line) + gap.len() + width(part) > columns {
            break;
        }
        line = format!("{line}{gap}{part}");
    }
    line
}

/// Shortens a name, keeping its end, which is more informative than its beginning.
fn end_of(name: &str, columns: usize) -> String {
    if width(name) <= columns {
        return name.to_owned();
    }
    let mut taken = 1;
    let fits = |letter: &char| {
        taken += width_of(*letter);
        taken <= columns
    };
    let mut letters: Vec<char> = name.chars().rev().take_while(fits).collect();
    letters.push('…');
    letters.into_iter().rev().collect()
}

fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

/// Returns an upper bound: terminals differ in which characters take two columns.
fn width_of(letter: char) -> usize {
    if letter.is_ascii() || letter == '…' { 1 } else { 2 }
}

pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut tenths, mut unit) = (u128::from(bytes) * 10 / 1024, 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> ProgressLine {
        ProgressLine {
            found: 9,
            files: 3,
            all_files: 12,
            bytes: 150 << 20,
            all_bytes: 600 << 20,
            transferred: 150 << 20,
            rate: 50 << 20,
            name: "some/directory/größe.bin".to_owned(),
        }
    }

    #[test]
    fn a_line_shows_the_parts_that_fit() {
        let all = " 25%  3/12 files  50.0 MiB/s  ETA 0:09  150.0 MiB of 600.0 MiB  some/directory/größe.bin";
        assert_eq!(shown().line(120), all);
        assert_eq!(shown().line(45), " 25%  3/12 files  50.0 MiB/s  ETA 0:09");
        assert_eq!(shown().line(4), " 25%");
        assert_eq!(shown().line(3), "");
        let listing = ProgressLine { all_files: 0, ..shown() };
        assert_eq!(listing.line(80), "9 found");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let wide = ProgressLine { name: "日本語の長い名前".repeat(20), ..shown() };
        for columns in 0..200 {
            for shown in [&shown(), &wide, &ProgressLine::default()] {
                let line = shown.line(columns);
                assert!(width(&line) <= columns, "{columns}: {line:?}");
            }
        }
    }

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1024), "1.0 KiB");
        assert_eq!(size(u64::MAX), "15.9 EiB");
        assert_eq!(clock(Duration::from_secs(3_725)), "1:02:05");
        assert_eq!(ProgressLine { bytes: 9, all_bytes: 3, ..shown() }.percent(), 100);
        let done = ProgressLine { files: 1, ..shown() }.done(Duration::from_millis(1500));
        assert_eq!(done, "1 file, 150.0 MiB in 1.5 s (100.0 MiB/s)");
    }
}
