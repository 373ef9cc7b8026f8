//! Limits the audit log lines that refused clients can cause. A client needs no credentials to be
//! refused, so it must not be able to fill the disk.

use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);
const MAX_LINES: u32 = 20;

/// Allows 20 lines per second. Further refusals are only counted.
#[derive(Debug, Default)]
pub struct RefusalLines {
    began: Option<Instant>,
    written: u32,
    left_out: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum RefusalLine {
    Write,
    /// First write a summary of the refusals that had no line.
    WriteWithSummary {
        left_out: u64,
    },
    LeaveOut,
}

impl RefusalLines {
    #[must_use]
    pub fn next(&mut self, now: Instant) -> RefusalLine {
        let is_over = self.began.is_none_or(|began| now >= began + WINDOW);
        if is_over {
            (self.began, self.written) = (Some(now), 0);
        }
        if self.written == MAX_LINES {
            self.left_out += 1;
            return RefusalLine::LeaveOut;
        }
        self.written += 1;
        match self.take_left_out() {
            0 => RefusalLine::Write,
            left_out => RefusalLine::WriteWithSummary { left_out },
        }
    }

    /// Returns the number of refusals that have no line and are in no summary yet, and resets it.
    pub fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_makes_few_lines_and_all_are_counted() {
        let (mut lines, start) = (RefusalLines::default(), Instant::now());
        let flood: Vec<_> = (0..1000).map(|_| lines.next(start)).collect();
        let written = flood.iter().filter(|line| **line == RefusalLine::Write).count();
        assert_eq!(written, MAX_LINES as usize);
        let later = lines.next(start + WINDOW);
        assert_eq!(later, RefusalLine::WriteWithSummary { left_out: 980 });
        assert_eq!(lines.next(start + WINDOW), RefusalLine::Write);
        assert_eq!(lines.take_left_out(), 0);
    }
}
