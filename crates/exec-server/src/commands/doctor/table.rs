//! The findings as a table of eighty columns.

use std::fmt::Write as _;

use super::Report;
use super::checks::{Check, Upgrade};
use super::sandbox::{MechanismReport, Verdict};
use crate::terminal::printable;
use crate::terminal::{Colour, Paint};

const WIDTH: usize = 80;
const MARK: usize = 4;
const NAME: usize = 18;
const INDENT: usize = MARK + 1 + NAME + 1;
/// Introduces the remedy for a partial result.
const FULL_SUPPORT: &str = "for full support";

pub(super) fn text(report: &Report, paint: Paint) -> String {
    let mut table = Table { text: String::new(), paint };
    table.heading("Processes");
    for check in &report.checks {
        table.check(check);
    }
    if !report.sandbox.mechanisms.is_empty() {
        table.heading("Mechanisms of sandboxes");
    }
    let mut above = None;
    for mechanism in &report.sandbox.mechanisms {
        table.mechanism(mechanism, above.replace(mechanism));
    }
    table.heading("Sandboxes");
    for check in &report.sandbox.sandboxes {
        table.check(check);
    }
    if !report.cluster.is_empty() {
        table.heading("Rendezvous cluster");
    }
    for check in &report.cluster {
        table.check(check);
    }
    table.line("");
    for summary in [report.sandbox.summary, report.sandbox.network.summary] {
        for line in wrapped(summary, WIDTH) {
            table.line(&line);
        }
    }
    table.text
}

struct Table {
    text: String,
    paint: Paint,
}

impl Table {
    fn heading(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.line("");
        }
        self.line(title);
    }

    fn check(&mut self, check: &Check) {
        let mut paragraphs = vec![check.detail.clone()];
        let verdict = match &check.upgrade {
            Some(Upgrade { reason, remedy }) => {
                paragraphs.push(format!("reason: {reason}"));
                paragraphs.push(format!("{FULL_SUPPORT}: {remedy}"));
                Verdict::Partial
            }
            None if check.works => Verdict::Works,
            None => Verdict::Needed,
        };
        self.row(verdict, check.name, &paragraphs);
    }

    /// A reason shared with the mechanism `above` is not repeated.
    fn mechanism(&mut self, mechanism: &MechanismReport, above: Option<&MechanismReport>) {
        let MechanismReport { title, verdict, detail, gives, remedy, .. } = mechanism;
        let mut paragraphs = vec![(*gives).to_owned()];
        let same = |above: &MechanismReport| above.remedy == *remedy && above.detail == *detail;
        if remedy.is_some() && above.is_some_and(same) {
            paragraphs.push("reason and remedy: as above".to_owned());
            return self.row(*verdict, title, &paragraphs);
        }
        match verdict {
            Verdict::Works if detail == "works" => {}
            Verdict::Works | Verdict::Partial => paragraphs.push(format!("({detail})")),
            Verdict::Missing | Verdict::Needed => paragraphs.push(format!("reason: {detail}")),
        }
        if let Some(remedy) = remedy {
            let wish = if *verdict == Verdict::Partial { FULL_SUPPORT } else { "remedy" };
            paragraphs.push(format!("{wish}: {remedy}"));
        }
        self.row(*verdict, title, &paragraphs);
    }

    fn row(&mut self, verdict: Verdict, name: &str, paragraphs: &[String]) {
        let (mark, colour) = match verdict {
            Verdict::Works => ("ok", Some(Colour::Green)),
            Verdict::Partial => ("part", Some(Colour::Magenta)),
            Verdict::Missing => ("no", Some(Colour::Dim)),
            Verdict::Needed => ("FAIL", Some(Colour::Red)),
        };
        let mark = self.paint.apply(colour, format!("{mark:<MARK$}"));
        let mut start = format!("{mark} {name:<NAME$} ");
        for paragraph in paragraphs {
            for line in wrapped(paragraph, WIDTH - INDENT) {
                self.line(&format!("{start}{line}"));
                start = " ".repeat(INDENT);
            }
        }
    }

    fn line(&mut self, line: &str) {
        writeln!(self.text, "{}", line.trim_end()).expect("a String accepts every write");
    }
}

/// Wraps text between words. A word longer than `width` has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace().map(printable) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::network::{NetworkReport, NetworkTier};
    use super::super::sandbox::{SandboxReport, Tier};
    use super::*;

    fn mechanism(
        title: &str,
        verdict: Verdict,
        detail: &str,
        remedy: Option<&str>,
    ) -> MechanismReport {
        MechanismReport {
            name: "m",
            title: title.to_owned(),
            verdict,
            detail: detail.to_owned(),
            gives: "something that it takes more than a single line of the table to describe",
            remedy: remedy.map(str::to_owned),
        }
    }

    #[test]
    fn the_table_has_eighty_columns() {
        let report = Report {
            healthy: false,
            checks: vec![
                Check::works("spawner", "programs start"),
                Check {
                    upgrade: Some(Upgrade { reason: "no cgroup".to_owned(), remedy: "a service" }),
                    ..Check::works("limits", "keepers sample")
                },
            ],
            cluster: Vec::new(),
            sandbox: SandboxReport {
                tier: Tier::None,
                summary: "Nothing works.",
                mechanisms: vec![
                    mechanism("Landlock", Verdict::Partial, "ABI 3", Some("a newer kernel")),
                    mechanism("seccomp", Verdict::Works, "works", None),
                    mechanism("bubblewrap", Verdict::Missing, "not installed", Some("install it")),
                    mechanism("other", Verdict::Needed, "not installed", Some("install it")),
                ],
                sandboxes: vec![Check::fails("read-only", "it wrote\nall the same")],
                network: NetworkReport::new(NetworkTier::None),
            },
        };
        let expected = "\
Processes
ok   spawner            programs start
part limits             keepers sample
                        reason: no cgroup
                        for full support: a service

Mechanisms of sandboxes
part Landlock           something that it takes more than a single line of the
                        table to describe
                        (ABI 3)
                        for full support: a newer kernel
ok   seccomp            something that it takes more than a single line of the
                        table to describe
no   bubblewrap         something that it takes more than a single line of the
                        table to describe
                        reason: not installed
                        remedy: install it
FAIL other              something that it takes more than a single line of the
                        table to describe
                        reason and remedy: as above

Sandboxes
FAIL read-only          it wrote all the same

Nothing works.
Rules about hosts (--allow-host) cannot be enforced here: commands with such
rules are refused.
";
        let text = text(&report, Paint::for_stream(&std::fs::File::open("/dev/null").unwrap()));
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
    }
}
