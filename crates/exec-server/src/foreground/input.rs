//! From our standard input to the process's.

use bytes::{Bytes, BytesMut};
use exec_server_client::ExecServerProcess;
use exec_server_protocol::WriteStatus;
use tokio::sync::mpsc;

use super::stdin;
use crate::terminal::{self, EscapeMachine, Typed};

/// What may wait for an answer to the write before it. From a pipe, nothing more is taken then; what is typed
/// beyond it is dropped, so that escapes are found at any time.
const MOST_PENDING: usize = 1 << 20;

/// Ctrl-C, as a terminal in raw mode sends it.
const INTERRUPT_KEY: u8 = 3;

/// Who writes to our standard input.
#[derive(Debug)]
pub(crate) enum Source {
    /// Every byte is for the process.
    Stream,
    /// A person, who may also mean us.
    Keyboard(EscapeMachine),
}

impl Source {
    /// Escapes are for people: in what a program writes a tilde is a tilde.
    pub(crate) fn with_escapes() -> Self {
        if terminal::is_stdin_a_terminal() {
            Self::Keyboard(EscapeMachine::new())
        } else {
            Self::Stream
        }
    }
}

/// Why nothing more is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// Our input has ended, or the process takes none.
    Finished,
    /// The person typed `~.`.
    Left,
    /// The person typed Ctrl-C while the process could not be reached.
    GaveUp,
}

/// Forwards until there is nothing more to forward. While one write is on its way, what arrives is collected for the
/// next, so that neither a lone keystroke nor a flood waits longer than it must.
pub(crate) async fn forward(
    process: &ExecServerProcess,
    mut arriving: mpsc::Receiver<Bytes>,
    mut source: Source,
    is_away: impl Fn() -> bool,
) -> InputEnd {
    let mut pending = BytesMut::new();
    let mut accepts = true;
    let mut ended = false;
    loop {
        if !accepts {
            pending.clear();
            if matches!(source, Source::Stream) {
                drop(arriving);
                // Without /dev/null our input stays open, and whoever writes to it notices later.
                let _ = stdin::release();
                return InputEnd::Finished;
            }
        }
        if pending.is_empty() {
            if ended {
                let _ = process.close_stdin().await;
                return InputEnd::Finished;
            }
            match take(arriving.recv().await, &mut pending, &mut source, &is_away) {
                Taken::Input => {}
                Taken::Nothing => ended = true,
                Taken::End(end) => return end,
            }
            continue;
        }
        let writing = process.write(pending.split().freeze());
        tokio::pin!(writing);
        loop {
            let has_room = pending.len() < MOST_PENDING || matches!(source, Source::Keyboard(_));
            tokio::select! {
                status = &mut writing => {
                    // An error is also what the events of the process end with.
                    accepts = status.is_ok_and(|status| status == WriteStatus::Accepted);
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

enum Taken {
    Input,
    /// Our input has ended.
    Nothing,
    End(InputEnd),
}

fn take(
    chunk: Option<Bytes>,
    pending: &mut BytesMut,
    source: &mut Source,
    is_away: &impl Fn() -> bool,
) -> Taken {
    let Some(chunk) = chunk else { return Taken::Nothing };
    let Source::Keyboard(escapes) = source else {
        pending.extend_from_slice(&chunk);
        return Taken::Input;
    };
    if chunk.contains(&INTERRUPT_KEY) && is_away() {
        return Taken::End(InputEnd::GaveUp);
    }
    for typed in escapes.feed(&chunk) {
        match typed {
            Typed::Input(bytes) if pending.len() < MOST_PENDING => {
                pending.extend_from_slice(&bytes);
            }
            Typed::Input(_) => {}
            Typed::Help => super::show(terminal::HELP),
            Typed::Leave => return Taken::End(InputEnd::Left),
        }
    }
    Taken::Input
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(chunk: &'static str, source: &mut Source, away: bool) -> (Taken, BytesMut) {
        let mut pending = BytesMut::new();
        let taken = take(Some(chunk.into()), &mut pending, source, &|| away);
        (taken, pending)
    }

    fn keyboard() -> Source {
        Source::Keyboard(EscapeMachine::new())
    }

    #[test]
    fn a_stream_has_no_escapes() {
        let (taken, pending) = taken("~.\x03", &mut Source::Stream, true);
        assert!(matches!(taken, Taken::Input));
        assert_eq!(pending, "~.\x03");
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
        let taken = take(Some("more".into()), &mut pending, &mut keyboard(), &|| true);
        assert!(matches!(taken, Taken::Input));
        assert_eq!(pending.len(), MOST_PENDING);
    }
}
