//! From our standard input to the process's.

use std::io;

use bytes::{Bytes, BytesMut};
use exec_server_client::{ExecServerError, ExecServerProcess};
use exec_server_protocol::WriteStatus;
use tokio::sync::mpsc;

use super::stdin;
use crate::terminal::{self, EscapeMachine, TypedInput};

/// What may wait for an answer to the write before it. From a pipe, nothing more is taken then; what is typed
/// beyond it is dropped, so that escapes are found at any time.
const MOST_PENDING: usize = 1 << 20;

/// Ctrl-C, as a terminal in raw mode sends it.
const INTERRUPT_KEY: u8 = 3;

/// Ends the input of whoever reads a terminal, if a line has just begun; else it hands over what the line has so far.
const END_OF_FILE: &[u8] = b"\x04";

/// Who writes to our standard input.
#[derive(Debug)]
pub(crate) enum Source {
    /// Every byte is for the process.
    Stream(OnStreamEnd),
    /// A person, who may also mean us.
    Keyboard(EscapeMachine),
}

/// What the end of the input stream does to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnStreamEnd {
    /// Its standard input is closed, too.
    CloseStdin,
    /// Nothing happens: another client may write to it later.
    KeepStdinOpen,
}

impl Source {
    /// Escapes are for people: in what a program writes a tilde is a tilde.
    pub(crate) fn with_escapes(end: OnStreamEnd) -> Self {
        if terminal::is_stdin_a_terminal() {
            Self::Keyboard(EscapeMachine::new())
        } else {
            Self::Stream(end)
        }
    }
}

/// Why nothing more is forwarded.
#[derive(Debug)]
pub(crate) enum InputEnd {
    /// Our input has ended, or the process takes none.
    Finished,
    /// Our input cannot be read: what was meant to come is not known.
    Failed(io::Error),
    /// The server refused input, and so the process would miss a part of it.
    Refused(ExecServerError),
    /// The person's terminal is gone.
    HungUp,
    /// The person typed `~.`.
    Left,
    /// The person typed Ctrl-C while the process could not be reached.
    GaveUp,
}

/// Forwards until there is nothing more to forward. While one write is on its way, what arrives is collected for the
/// next, so that neither a lone keystroke nor a flood waits longer than it must.
pub(crate) async fn forward(
    process: &ExecServerProcess,
    has_terminal: bool,
    mut arriving: mpsc::Receiver<io::Result<Bytes>>,
    mut source: Source,
    is_away: impl Fn() -> bool,
) -> InputEnd {
    let mut pending = BytesMut::new();
    let mut last_byte = None;
    let mut accepts = true;
    let mut ended = false;
    loop {
        if !accepts {
            pending.clear();
            if matches!(source, Source::Stream(_)) {
                drop(arriving);
                // Without /dev/null our input stays open, and whoever writes to it notices later.
                let _ = stdin::release();
                return InputEnd::Finished;
            }
        }
        if pending.is_empty() {
            if ended {
                return end(process, has_terminal, &source, last_byte).await;
            }
            match take(arriving.recv().await, &mut pending, &mut source, &is_away) {
                Taken::Input => {}
                Taken::Nothing => ended = true,
                Taken::End(end) => return end,
            }
            continue;
        }
        last_byte = pending.last().copied();
        let writing = process.write(pending.split().freeze());
        tokio::pin!(writing);
        loop {
            let has_room = pending.len() < MOST_PENDING || matches!(source, Source::Keyboard(_));
            tokio::select! {
                status = &mut writing => {
                    match (status, &source) {
                        (Ok(status), _) => accepts = status == WriteStatus::Accepted,
                        (Err(error @ ExecServerError::Server(_)), Source::Stream(_)) => {
                            return InputEnd::Refused(error);
                        }
                        (Err(error @ ExecServerError::Server(_)), Source::Keyboard(_)) => {
                            super::show(&format!("exec-server: input was lost: {error}\n"));
                        }
                        // The events of the process end with the same error.
                        (Err(_), _) => accepts = false,
                    }
                    break;
                }
                chunk = arriving.recv(), if !ended && has_room => {
                    match take(chunk, &mut pending, &mut source, &is_away) {
                        Taken::Input => {}
                        Taken::Nothing => ended = true,
                        Taken::End(end) => return end,
                    }
                }
            }
        }
    }
}

/// What is left to do when everything is written.
async fn end(
    process: &ExecServerProcess,
    has_terminal: bool,
    source: &Source,
    last_byte: Option<u8>,
) -> InputEnd {
    match source {
        // In raw mode the end of input is a key like any other, so this is the end of the terminal.
        Source::Keyboard(_) if has_terminal => return InputEnd::HungUp,
        Source::Stream(OnStreamEnd::KeepStdinOpen) => return InputEnd::Finished,
        Source::Keyboard(_) | Source::Stream(OnStreamEnd::CloseStdin) => {}
    }
    // An error is also what the events of the process end with.
    if has_terminal && is_within_line(last_byte) {
        let _ = process.write(END_OF_FILE).await;
    }
    let _ = process.close_stdin().await;
    InputEnd::Finished
}

fn is_within_line(last_byte: Option<u8>) -> bool {
    last_byte.is_some_and(|byte| byte != END_OF_FILE[0] && !matches!(byte, b'\r' | b'\n'))
}

enum Taken {
    Input,
    /// Our input has ended.
    Nothing,
    End(InputEnd),
}

fn take(
    chunk: Option<io::Result<Bytes>>,
    pending: &mut BytesMut,
    source: &mut Source,
    is_away: &impl Fn() -> bool,
) -> Taken {
    let chunk = match chunk {
        Some(Ok(chunk)) => chunk,
        Some(Err(error)) => {
            return Taken::End(match source {
                Source::Keyboard(_) => InputEnd::HungUp,
                Source::Stream(_) => InputEnd::Failed(error),
            });
        }
        None => return Taken::Nothing,
    };
    let Source::Keyboard(escapes) = source else {
        pending.extend_from_slice(&chunk);
        return Taken::Input;
    };
    if chunk.contains(&INTERRUPT_KEY) && is_away() {
        return Taken::End(InputEnd::GaveUp);
    }
    for typed in escapes.feed(&chunk) {
        match typed {
            TypedInput::Input(bytes) if pending.len() < MOST_PENDING => {
                pending.extend_from_slice(&bytes);
            }
            TypedInput::Input(_) => {}
            TypedInput::Help => super::show(terminal::HELP),
            TypedInput::Leave => return Taken::End(InputEnd::Left),
        }
    }
    Taken::Input
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(chunk: &'static str, source: &mut Source, away: bool) -> (Taken, BytesMut) {
        let mut pending = BytesMut::new();
        let taken = take(Some(Ok(chunk.into())), &mut pending, source, &|| away);
        (taken, pending)
    }

    fn keyboard() -> Source {
        Source::Keyboard(EscapeMachine::new())
    }

    #[test]
    fn a_stream_has_no_escapes() {
        let mut stream = Source::Stream(OnStreamEnd::CloseStdin);
        let (taken, pending) = taken("~.\x03", &mut stream, true);
        assert!(matches!(taken, Taken::Input));
        assert_eq!(pending, "~.\x03");
    }

    #[test]
    fn a_failure_is_not_an_end() {
        let failed = |mut source| {
            let error = Some(Err(io::ErrorKind::Other.into()));
            take(error, &mut BytesMut::new(), &mut source, &|| false)
        };
        assert!(matches!(failed(keyboard()), Taken::End(InputEnd::HungUp)));
        let stream = Source::Stream(OnStreamEnd::KeepStdinOpen);
        assert!(matches!(failed(stream), Taken::End(InputEnd::Failed(_))));
    }

    #[test]
    fn a_line_begins_after_a_newline_or_an_end_of_file() {
        assert!(is_within_line(Some(b'c')));
        for byte in [None, Some(b'\n'), Some(b'\r'), Some(4)] {
            assert!(!is_within_line(byte), "{byte:?}");
        }
    }

    #[test]
    fn a_person_can_leave() {
        let (taken, _) = taken("~.", &mut keyboard(), false);
        assert!(matches!(taken, Taken::End(InputEnd::Left)));
    }

    #[test]
    fn the_interrupt_key_is_ours_only_while_the_process_is_away() {
        let (there, pending) = taken("\x03", &mut keyboard(), false);
        assert!(matches!(there, Taken::Input));
        assert_eq!(pending, "\x03");
        let (away, _) = taken("\x03", &mut keyboard(), true);
        assert!(matches!(away, Taken::End(InputEnd::GaveUp)));
    }

    #[test]
    fn what_is_typed_to_nobody_is_bounded() {
        let mut pending = BytesMut::zeroed(MOST_PENDING);
        let taken = take(Some(Ok("more".into())), &mut pending, &mut keyboard(), &|| true);
        assert!(matches!(taken, Taken::Input));
        assert_eq!(pending.len(), MOST_PENDING);
    }
}
