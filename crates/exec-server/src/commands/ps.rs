//! `exec-server ps`: lists the processes of a server.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use exec_server_protocol::LimitName;
use serde::Serialize;

use super::listing::Listed;
use crate::terminal::{Colour, Paint, json_line, printable};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonProcess<'a> {
    process_id: &'a str,
    session_id: &'a str,
    client_name: &'a str,
    attached: bool,
    argv: &'a [String],
    tty: bool,
    running: bool,
    exit_code: Option<i32>,
    timed_out: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    limits_hit: &'a [LimitName],
    started_at_ms: u64,
    descendants: u64,
}

pub(crate) fn print(listed: &[Listed], all: bool, json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let shown = shown(listed, all);
    if json {
        let processes: Vec<_> = shown.into_iter().map(as_json).collect();
        return super::print(json_line(&processes).as_bytes(), &mut stdout);
    }
    let width = crate::terminal::size_of_stdout().map(|(_, cols)| usize::from(cols));
    let text = table(&shown, now_ms(), Paint::for_stream(&stdout), width);
    super::print(text.as_bytes(), &mut stdout)
}

fn shown(listed: &[Listed], all: bool) -> Vec<&Listed> {
    listed.iter().filter(|listed| all || listed.process.running).collect()
}

fn as_json(listed: &Listed) -> JsonProcess<'_> {
    let Listed { session, process } = listed;
    JsonProcess {
        process_id: &process.process_id,
        session_id: &session.session_id,
        client_name: &session.client_name,
        attached: session.attached,
        argv: &process.argv,
        tty: process.tty,
        running: process.running,
        exit_code: process.exit_code,
        timed_out: process.timed_out,
        limits_hit: &process.limits_hit,
        started_at_ms: process.started_at_ms,
        descendants: process.descendants,
    }
}

/// The command is the last column, truncated to the width of the terminal.
fn table(listed: &[&Listed], now_ms: u64, paint: Paint, width: Option<usize>) -> String {
    const HEADINGS: [&str; 5] = ["NAME", "STATUS", "AGE", "SESSION", "COMMAND"];
    let rows: Vec<[String; 5]> = listed
        .iter()
        .map(|listed| {
            [
                printable(listed.name()),
                status(listed),
                age(now_ms.saturating_sub(listed.process.started_at_ms)),
                printable(listed.short_session()),
                command_line(&listed.process.argv),
            ]
        })
        .collect();
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEADINGS[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADINGS.len()).map(widest).collect();
    let before_command: usize = widths[..4].iter().map(|width| width + 2).sum();
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(before_command).max(10));

    let mut text = String::new();
    let heading = HEADINGS.map(str::to_owned);
    let colours = listed.iter().map(|listed| Some(colour(listed)));
    for (cells, status_colour) in
        std::iter::once(&heading).chain(&rows).zip(std::iter::once(None).chain(colours))
    {
        for (column, cell) in cells.iter().enumerate().take(4) {
            let padding = " ".repeat(widths[column] - cell.chars().count() + 2);
            let colour = if column == 1 { status_colour } else { None };
            text += &paint.apply(colour, cell);
            text += &padding;
        }
        text.extend(cells[4].chars().take(room));
        text.push('\n');
    }
    text
}

fn status(listed: &Listed) -> String {
    match (listed.process.running, listed.process.exit_code) {
        (true, _) if listed.session.attached => "running, attached".to_owned(),
        (true, _) => "running".to_owned(),
        (false, Some(code)) if listed.process.timed_out => format!("timed out ({code})"),
        (false, Some(code)) => format!("exited ({code})"),
        (false, None) => "ended".to_owned(),
    }
}

fn colour(listed: &Listed) -> Colour {
    match (listed.process.running, listed.process.exit_code) {
        (true, _) => Colour::Green,
        (false, Some(0)) => Colour::Dim,
        (false, _) => Colour::Red,
    }
}

fn age(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Formats a command line for a shell: words with unusual characters are quoted.
pub(super) fn command_line(argv: &[String]) -> String {
    let is_plain = |word: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,+@%^~".contains(&byte);
        !word.is_empty() && word.bytes().all(plain)
    };
    let quoted = |word: &String| {
        if is_plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    printable(&argv.iter().map(quoted).collect::<Vec<_>>().join(" "))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::listing::tests::listed;
    use super::*;

    fn plain() -> Paint {
        Paint::for_stream(&std::fs::File::open("/dev/null").unwrap())
    }

    #[test]
    fn columns_are_aligned() {
        let mut long = listed("0123456789", "a-long-name");
        long.process.running = false;
        long.process.exit_code = Some(130);
        let short = listed("9876543210", "b");
        assert_eq!(
            table(&[&long, &short], 61_000, plain(), None),
            "NAME         STATUS        AGE  SESSION   COMMAND\n\
             a-long-name  exited (130)  60s  01234567  sleep 1000\n\
             b            running       60s  98765432  sleep 1000\n"
        );
    }

    #[test]
    fn finished_processes_are_shown_on_demand() {
        let [running, mut finished] = ["a", "b"].map(|name| listed("0123456789", name));
        finished.process.running = false;
        let all = [running, finished];
        assert_eq!(shown(&all, false), [&all[0]]);
        assert_eq!(shown(&all, true), [&all[0], &all[1]]);
    }

    #[test]
    fn commands_are_truncated_to_the_terminal() {
        let mut listed = listed("0123456789", "b");
        listed.process.argv = vec!["x".repeat(100)];
        let text = table(&[&listed], 1_000, plain(), Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    }

    #[test]
    fn text_of_a_server_cannot_move_the_cursor() {
        let hostile = listed("\x1b[2J\u{9b}2", "\x1b]0;a\x07");
        let text = table(&[&hostile], 1_000, plain(), None);
        assert!(text.lines().all(|line| !line.contains(crate::terminal::is_harmful)), "{text:?}");
    }

    #[test]
    fn words_are_quoted_and_harmless() {
        let line = |words: &[&str]| {
            command_line(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(line(&["sh", "-c", "echo 'a'", ""]), r"sh -c 'echo '\''a'\''' ''");
        assert_eq!(line(&["\x1b[2J"]), "'\u{fffd}[2J'");
        assert_eq!(line(&["a\u{202e}b\u{2066}"]), "'a\u{fffd}b\u{fffd}'");
    }

    #[test]
    fn ages_have_one_unit() {
        let shown = [0, 119_999, 120_000, 7_199_999, 7_200_000, 172_799_999, 172_800_000].map(age);
        assert_eq!(shown, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }
}
