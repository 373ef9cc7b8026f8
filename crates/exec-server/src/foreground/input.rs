//! Forwards standard input to the process.

use std::io;

use bytes::{Bytes, BytesMut};
use exec_server_client::{ExecServerError, ExecServerProcess};
use exec_server_protocol::WriteStatus;
use tokio::sync::mpsc;

use super::stdin;
use crate::terminal::{self, EscapeMachine, TypedInput};

/// Bounds the input that waits for the response to the previous write. Beyond the bound, a
/// [`Source::Stream`] is not read; typed input is read and dropped, so that escapes are always
/// recognised.
const MOST_PENDING: usize = 1 << 20;

/// Ctrl-C, as sent by a terminal in raw mode.
const INTERRUPT_KEY: u8 = 3;

/// EOT: at the start of a line it ends the input of a program that reads a terminal; otherwise it
/// submits the partial line.
const END_OF_FILE: &[u8] = b"\x04";

#[derive(Debug)]
pub(crate) enum Source {
    /// Every byte is for the process.
    Stream(OnStreamEnd),
    /// A user at a terminal, whose input may contain escapes.
    Keyboard(EscapeMachine),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnStreamEnd {
    CloseStdin,
    /// Another client may write to the process's standard input later.
    KeepStdinOpen,
}

impl Source {
    /// Recognises escapes only on a terminal: in piped input a tilde is a plain character.
    pub(crate) fn with_escapes(end: OnStreamEnd) -> Self {
        if terminal::is_stdin_a_terminal() {
            Self::Keyboard(EscapeMachine::new())
        } else {
            Self::Stream(end)
        }
    }
}

#[derive(Debug)]
pub(crate) enum InputEnd {
    /// The input has ended, or no more of it can be written.
    Finished,
    /// Reading the input failed, so the rest of it is unknown.
    Failed(io::Error),
    /// The server refused input, so the process would miss a part of it.
    Refused(ExecServerError),
    /// The terminal has closed.
    HungUp,
    /// The user typed `~.`.
    Left,
    /// The user typed Ctrl-C while the connection was lost.
    GaveUp,
}

/// Forwards input until it ends. While one write is in flight, further input is collected for the
/// next, so that neither single keystrokes nor bulk data wait longer than necessary.
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
                // If this fails, standard input stays open, and its writer gets a broken pipe only
                // when this program ends.
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

/// Handles the end of the input, once everything is written.
async fn end(
    process: &ExecServerProcess,
    has_terminal: bool,
    source: &Source,
    last_byte: Option<u8>,
) -> InputEnd {
    match source {
        // In raw mode the end-of-file key is plain input, so the end of input means that the
        // terminal has closed.
        Source::Keyboard(_) if has_terminal => return InputEnd::HungUp,
        Source::Stream(OnStreamEnd::KeepStdinOpen) => return InputEnd::Finished,
        Source::Keyboard(_) | Source::Stream(OnStreamEnd::CloseStdin) => {}
    }
    // Errors are ignored: the events of the process report them too.
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
    /// The input has ended.
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
    fn a_read_error_is_not_the_end_of_input() {
        let failed = |mut source| {
            let error = Some(Err(io::ErrorKind::Other.into()));
            take(error, &mut BytesMut::new(), &mut source, &|| false)
        };
        assert!(matches!(failed(keyboard()), Taken::End(InputEnd::HungUp)));
        let stream = Source::Stream(OnStreamEnd::KeepStdinOpen);
        assert!(matches!(failed(stream), Taken::End(InputEnd::Failed(_))));
    }

    #[test]
    fn a_line_starts_after_a_newline_or_eot() {
        assert!(is_within_line(Some(b'c')));
        for byte in [None, Some(b'\n'), Some(b'\r'), Some(4)] {
            assert!(!is_within_line(byte), "{byte:?}");
        }
    }

    #[test]
    fn a_user_can_leave() {
        let (taken, _) = taken("~.", &mut keyboard(), false);
        assert!(matches!(taken, Taken::End(InputEnd::Left)));
    }

    #[test]
    fn the_interrupt_key_is_forwarded_unless_the_connection_is_lost() {
        let (there, pending) = taken("\x03", &mut keyboard(), false);
        assert!(matches!(there, Taken::Input));
        assert_eq!(pending, "\x03");
        let (away, _) = taken("\x03", &mut keyboard(), true);
        assert!(matches!(away, Taken::End(InputEnd::GaveUp)));
    }

    #[test]
    fn typed_input_is_bounded_while_the_connection_is_lost() {
        let mut pending = BytesMut::zeroed(MOST_PENDING);
        let taken = take(Some(Ok("more".into())), &mut pending, &mut keyboard(), &|| true);
        assert!(matches!(taken, Taken::Input));
        assert_eq!(pending.len(), MOST_PENDING);
    }
}
