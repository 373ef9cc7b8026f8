//! Measures the round trip of a byte to a program on a terminal and back, as a user experiences it
//! when typing.

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
/// Reports that the terminal is raw. From then on each byte is returned once, by the program.
const READY: u8 = b'!';
const SCRIPT: &str = "stty raw -echo && printf ! && exec cat";

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let server = BenchServer::start()?;
    let mut remote = RemoteTerminal::open(Client::connect(&server, Nagle::Off)?)?;
    let mut terminal = Terminal::run(&echo())?;
    let first = terminal.read()?;
    ensure!(first == READY, "the bare terminal is not raw: it printed {:?}", char::from(first));

    let [mut ours, mut bare] = std::array::from_fn(|_| Samples::default());
    for _ in 0..scale.keystrokes {
        ours.time(|| remote.type_key())?;
        bare.time(|| {
            terminal.write(KEY)?;
            let key = terminal.read()?;
            ensure!(key == KEY, "the bare terminal returned {:?}", char::from(key));
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

/// A program that echoes its input, on a terminal of a server.
#[derive(Debug)]
pub(super) struct RemoteTerminal {
    client: Client,
    process_id: String,
}

impl RemoteTerminal {
    pub(super) fn open(mut client: Client) -> anyhow::Result<Self> {
        let process_id = client.start(&echo(), Stdio::Terminal)?;
        let mut terminal = Self { client, process_id };
        terminal.expect_output(READY)?;
        Ok(terminal)
    }

    pub(super) fn type_key(&mut self) -> anyhow::Result<()> {
        self.client.write(&self.process_id, KEY)?;
        self.expect_output(KEY)
    }

    fn expect_output(&mut self, expected: u8) -> anyhow::Result<()> {
        loop {
            match self.client.next_event()? {
                Event::Output(bytes) => {
                    let returned = bytes.escape_ascii();
                    let expected_key = char::from(expected);
                    ensure!(
                        bytes == [expected],
                        "the terminal returned \"{returned}\", not \"{expected_key}\""
                    );
                    return Ok(());
                }
                Event::Closed => {
                    anyhow::bail!("the program on the terminal exited early, with code 0")
                }
                Event::Other => {}
            }
        }
    }
}

fn echo() -> Program {
    Program::new("/bin/sh").args(["-c", SCRIPT].map(str::to_owned))
}
