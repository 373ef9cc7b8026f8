//! Prints matches as `grep -rn` does.
//!
//! A match is held back until the next one is known: its trailing context may overlap the leading
//! context of the next match, or contain that match, and no line is printed twice.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use exec_server_protocol::{PathUri, SearchLine, SearchMatch};

use super::super::wording::as_written;
use crate::cli::files::GrepOutput;
use crate::terminal::{Colour, Names, Paint, is_harmful, json_line};

const CUT_MARK: &[u8] = b" [... rest of the line left out]";

#[derive(Debug)]
pub(super) struct SearchRoot {
    pub(super) path: PathBuf,
    /// The root as the user wrote it; empty if the user gave no path.
    pub(super) written: PathBuf,
    /// Whether lines begin with the name of their file.
    pub(super) is_named: bool,
}

#[derive(Debug)]
pub(super) struct Printer {
    root: SearchRoot,
    output: GrepOutput,
    /// Whether groups of lines are separated.
    has_context: bool,
    names: Names,
    paint: Paint,
    held: Option<SearchMatch>,
    /// The last printed line and its file.
    last: Option<(PathUri, u64)>,
    seen: HashSet<PathUri>,
    /// In the order of discovery.
    counts: Vec<(PathUri, u64)>,
}

impl Printer {
    pub(super) fn new(
        root: SearchRoot,
        output: GrepOutput,
        has_context: bool,
        names: Names,
        paint: Paint,
    ) -> Self {
        Self {
            root,
            output,
            has_context,
            names,
            paint,
            held: None,
            last: None,
            seen: HashSet::new(),
            counts: Vec::new(),
        }
    }

    pub(super) fn matches(&mut self, matches: Vec<SearchMatch>) -> Vec<u8> {
        let mut text = Vec::new();
        for found in matches {
            match self.output {
                GrepOutput::Json => text.extend(json_line(&found).into_bytes()),
                GrepOutput::Files => self.file(found.path, &mut text),
                GrepOutput::Counts => self.count(found.path),
                GrepOutput::Lines => {
                    if let Some(held) = self.held.take() {
                        let is_same_file = held.path == found.path;
                        let end = if is_same_file { found.line_number } else { u64::MAX };
                        self.lines(&held, end, &mut text);
                    }
                    self.held = Some(found);
                }
            }
        }
        text
    }

    /// Prints the held match and the counts.
    pub(super) fn end(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Some(held) = self.held.take() {
            self.lines(&held, u64::MAX, &mut text);
        }
        for (path, count) in std::mem::take(&mut self.counts) {
            self.name(&path, ':', &mut text);
            text.extend(format!("{count}\n").into_bytes());
        }
        text
    }

    fn file(&mut self, path: PathUri, text: &mut Vec<u8>) {
        if !self.seen.contains(&path) {
            let name = self.names.of(self.root.name(path.as_path()));
            self.painted(Colour::Magenta, &name, text);
            text.push(b'\n');
            self.seen.insert(path);
        }
    }

    fn count(&mut self, path: PathUri) {
        // Matches of one file are usually consecutive.
        match self.counts.iter_mut().rev().find(|(counted, _)| *counted == path) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((path, 1)),
        }
    }

    /// Prints the match and its context, except lines already printed and lines from `end` on.
    fn lines(&mut self, found: &SearchMatch, end: u64, text: &mut Vec<u8>) {
        let last =
            self.last.as_ref().filter(|(path, _)| *path == found.path).map(|(_, line)| *line);
        let is_new = |line: &&SearchLine| last.is_none_or(|last| line.line_number > last);
        let before: Vec<_> = found.before.iter().filter(is_new).collect();
        let first = before.first().map_or(found.line_number, |line| line.line_number);
        let is_apart = last.is_none_or(|last| first > last + 1);
        if self.has_context && self.last.is_some() && is_apart {
            self.painted(Colour::Dim, b"--", text);
            text.push(b'\n');
        }
        for line in before {
            self.context(&found.path, line, text);
        }
        self.head(&found.path, found.line_number, ':', text);
        self.marked(found, text);
        let mut printed = found.line_number;
        for line in found.after.iter().filter(|line| line.line_number < end) {
            self.context(&found.path, line, text);
            printed = line.line_number;
        }
        self.last = Some((found.path.clone(), printed));
    }

    fn context(&self, path: &PathUri, line: &SearchLine, text: &mut Vec<u8>) {
        self.head(path, line.line_number, '-', text);
        text.extend(self.shown(&line.text).into_bytes());
        self.line_end(line.line_truncated, text);
    }

    fn head(&self, path: &PathUri, line: u64, separator: char, text: &mut Vec<u8>) {
        self.name(path, separator, text);
        self.painted(Colour::Green, line.to_string().as_bytes(), text);
        self.painted(Colour::Dim, separator.to_string().as_bytes(), text);
    }

    fn name(&self, path: &PathUri, separator: char, text: &mut Vec<u8>) {
        if self.root.is_named {
            let name = self.names.of(self.root.name(path.as_path()));
            self.painted(Colour::Magenta, &name, text);
            self.painted(Colour::Dim, separator.to_string().as_bytes(), text);
        }
    }

    /// Prints the line with its matching parts coloured.
    fn marked(&self, found: &SearchMatch, text: &mut Vec<u8>) {
        let mut rest = 0;
        for submatch in &found.submatches {
            let range = (usize::try_from(submatch.start), usize::try_from(submatch.end));
            let (Ok(start), Ok(end)) = range else { continue };
            // A truncated line may end before its match.
            let (Some(between), Some(matched)) =
                (found.text.get(rest..start), found.text.get(start..end))
            else {
                continue;
            };
            text.extend(self.shown(between).into_bytes());
            let matched = self.shown(matched);
            if !matched.is_empty() {
                self.painted(Colour::Red, matched.as_bytes(), text);
            }
            rest = end;
        }
        text.extend(self.shown(found.text.get(rest..).unwrap_or_default()).into_bytes());
        self.line_end(found.line_truncated, text);
    }

    fn line_end(&self, is_cut: bool, text: &mut Vec<u8>) {
        if is_cut {
            self.painted(Colour::Dim, CUT_MARK, text);
        }
        text.push(b'\n');
    }

    /// Replaces control characters for a terminal: the content of files must not move the cursor.
    fn shown(&self, line: &str) -> String {
        match self.names {
            Names::Raw => line.to_owned(),
            Names::Escaped => {
                line.replace(|letter| is_harmful(letter) && letter != '\t', "\u{fffd}")
            }
        }
    }

    fn painted(&self, colour: Colour, bytes: &[u8], text: &mut Vec<u8>) {
        match (self.paint.is_wanted(), std::str::from_utf8(bytes)) {
            (true, Ok(word)) => text.extend(self.paint.apply(Some(colour), word).into_bytes()),
            _ => text.extend(bytes),
        }
    }
}

impl SearchRoot {
    fn name(&self, path: &Path) -> PathBuf {
        as_written(path, &self.path, &self.written)
    }
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::Submatch;

    use super::*;

    fn line(line_number: u64) -> SearchLine {
        SearchLine { line_number, text: format!("line {line_number}"), line_truncated: false }
    }

    fn found(path: &str, number: u64, context: u64) -> SearchMatch {
        SearchMatch {
            path: path.parse().unwrap(),
            line_number: number,
            text: line(number).text,
            line_truncated: false,
            submatches: vec![Submatch { start: 0, end: 4 }],
            before: (number.saturating_sub(context).max(1)..number).map(line).collect(),
            after: (number + 1..=number + context).map(line).collect(),
        }
    }

    fn printed(
        output: GrepOutput,
        context: bool,
        named: bool,
        matches: Vec<SearchMatch>,
    ) -> String {
        let root = SearchRoot { path: "/r".into(), written: "box:r".into(), is_named: named };
        let paint = Paint::for_stream(&std::fs::File::open("/dev/null").unwrap());
        let mut printer = Printer::new(root, output, context, Names::Raw, paint);
        let mut text = Vec::new();
        for found in matches {
            text.extend(printer.matches(vec![found]));
        }
        text.extend(printer.end());
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn names_are_shown_as_written() {
        let matches = vec![found("/r/a", 1, 0), found("/r/b/c", 7, 0)];
        let lines = printed(GrepOutput::Lines, false, true, matches.clone());
        assert_eq!(lines, "box:r/a:1:line 1\nbox:r/b/c:7:line 7\n");
        assert_eq!(printed(GrepOutput::Lines, false, false, matches), "1:line 1\n7:line 7\n");
        let root = |written: &str| SearchRoot {
            path: "/r".into(),
            written: written.into(),
            is_named: true,
        };
        assert_eq!(root("").name(Path::new("/r/a")), Path::new("a"));
        assert_eq!(root("./").name(Path::new("/r/a")).as_os_str(), "./a");
        assert_eq!(root("f").name(Path::new("/r")).as_os_str(), "f");
    }

    #[test]
    fn context_lines_are_printed_once() {
        let matches = vec![
            found("/r/a", 2, 2),
            found("/r/a", 3, 2),
            found("/r/a", 6, 2),
            found("/r/a", 20, 1),
        ];
        let text = printed(GrepOutput::Lines, true, false, matches);
        let expected = "1-line 1\n2:line 2\n3:line 3\n4-line 4\n5-line 5\n6:line 6\n7-line 7\n8-line 8\n--\n\
                        19-line 19\n20:line 20\n21-line 21\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn each_file_is_a_group() {
        let matches = vec![found("/r/a", 2, 1), found("/r/b", 2, 1)];
        let text = printed(GrepOutput::Lines, true, false, matches);
        assert_eq!(text, "1-line 1\n2:line 2\n3-line 3\n--\n1-line 1\n2:line 2\n3-line 3\n");
    }

    #[test]
    fn a_truncated_line_is_marked() {
        let mut match_and_context = found("/r/a", 2, 1);
        match_and_context.line_truncated = true;
        match_and_context.after[0].line_truncated = true;
        let matches = vec![match_and_context];
        let text = printed(GrepOutput::Lines, true, false, matches.clone());
        let cut = "[... rest of the line left out]";
        assert_eq!(text, format!("1-line 1\n2:line 2 {cut}\n3-line 3 {cut}\n"));
        let json = printed(GrepOutput::Json, true, false, matches);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["lineTruncated"], true);
        assert_eq!(json["before"][0].get("lineTruncated"), None);
        assert_eq!(json["after"][0]["lineTruncated"], true);
    }

    #[test]
    fn files_and_counts_are_printed_once() {
        let matches = vec![found("/r/a", 1, 0), found("/r/b", 1, 0), found("/r/a", 2, 0)];
        assert_eq!(printed(GrepOutput::Files, false, true, matches.clone()), "box:r/a\nbox:r/b\n");
        assert_eq!(
            printed(GrepOutput::Counts, false, true, matches.clone()),
            "box:r/a:2\nbox:r/b:1\n"
        );
        assert_eq!(printed(GrepOutput::Json, false, true, matches).lines().count(), 3);
    }
}
