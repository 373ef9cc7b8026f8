//! A byte to a program on a terminal and back: what typing feels like.

use anyhow::ensure;

use super::Scale;
use super::bare::Terminal;
use super::client::{Client, Event, Stdio};
use super::endpoint::Nagle;
use super::program::Program;
use super::report::{Limit, Row, Target, Unit};
use super::samples::Samples;
use super::server::BenchServer;

const KEY: u8 = b'k';
/// Says that the terminal is raw: from here on a byte comes back once, and by way of the program.
const READY: u8 = b'!';
const SCRIPT: &str = "stty raw -echo && printf ! && exec cat";

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let program = Program::new("/bin/sh").args(["-c", SCRIPT].map(str::to_owned));
    let server = BenchServer::start()?;
    let mut client = Client::connect(&server, Nagle::Off)?;
    let process_id = client.start(&program, Stdio::Terminal)?;
    expect_output(&mut client, READY)?;
    let mut terminal = Terminal::run(&program)?;
    ensure!(terminal.read()? == READY, "the bare terminal is not raw");

    let [mut ours, mut bare] = std::array::from_fn(|_| Samples::default());
    for _ in 0..scale.keystrokes {
        ours.time(|| {
            client.write(&process_id, KEY)?;
            expect_output(&mut client, KEY)
        })?;
        bare.time(|| {
            terminal.write(KEY)?;
            ensure!(terminal.read()? == KEY, "the bare terminal returned another key");
            Ok(())
        })?;
    }

    let row = |name, ours, bare| {
        let limit = Limit { value: bare, is: "bare terminal, same program" };
        Row::new(name, Unit::Seconds, ours).limit(limit)
    };
    Ok(vec![
        row("keystroke and back, p50", ours.median(), bare.median())
            .target(Target::RatioAtMost(2.5)),
        row("keystroke and back, p99", ours.percentile(99), bare.percentile(99)),
    ])
}

/// Waits for output, which must be this one byte.
fn expect_output(client: &mut Client, expected: u8) -> anyhow::Result<()> {
    loop {
        match client.next_event()? {
            Event::Output(bytes) => {
                ensure!(bytes == [expected], "the terminal returned something else than the key");
                return Ok(());
            }
            Event::Closed => anyhow::bail!("the program on the terminal ended"),
            Event::Other => {}
        }
    }
}
