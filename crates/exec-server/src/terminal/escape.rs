//! Escape sequences in typed input: a tilde at the start of a line, as in ssh.

/// Shown for `~?`.
pub(crate) const HELP: &str = "\
Supported escape sequences:
 ~.   leave
 ~?   this message
 ~~   send a tilde
(Escapes are only recognised right after a newline.)
";

#[derive(Debug)]
pub(crate) struct EscapeMachine {
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TypedInput {
    Input(Vec<u8>),
    Help,
    Leave,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    LineStart,
    InLine,
    /// A tilde at the start of a line, held back until the next byte.
    Tilde,
}

impl EscapeMachine {
    pub(crate) fn new() -> Self {
        Self { state: State::LineStart }
    }

    /// Splits the bytes into input and escapes, in order. Discards everything after
    /// [`TypedInput::Leave`].
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<TypedInput> {
        let mut typed = Vec::new();
        let mut input = Vec::new();
        for &byte in bytes {
            let command = match (self.state, byte) {
                (State::LineStart, b'~') => {
                    self.state = State::Tilde;
                    continue;
                }
                (State::Tilde, b'.') => Some(TypedInput::Leave),
                (State::Tilde, b'?') => Some(TypedInput::Help),
                (State::Tilde, byte) if byte != b'~' => {
                    input.push(b'~');
                    None
                }
                _ => None,
            };
            if let Some(command) = command {
                if !input.is_empty() {
                    typed.push(TypedInput::Input(std::mem::take(&mut input)));
                }
                let leaves = command == TypedInput::Leave;
                typed.push(command);
                // The program does not receive the escape, so it is still at the start of a line.
                self.state = State::LineStart;
                if leaves {
                    return typed;
                }
            } else {
                input.push(byte);
                let ends_line = matches!(byte, b'\r' | b'\n');
                self.state = if ends_line { State::LineStart } else { State::InLine };
            }
        }
        if !input.is_empty() {
            typed.push(TypedInput::Input(input));
        }
        typed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &str) -> TypedInput {
        TypedInput::Input(text.into())
    }

    fn fed(text: &str) -> Vec<TypedInput> {
        EscapeMachine::new().feed(text.as_bytes())
    }

    #[test]
    fn ordinary_text_passes() {
        assert_eq!(fed("ls ~/a\r"), [input("ls ~/a\r")]);
        assert_eq!(fed(""), []);
        assert_eq!(fed("a~.b~?"), [input("a~.b~?")]);
    }

    #[test]
    fn escapes_are_recognised_at_the_start_of_a_line() {
        assert_eq!(fed("~."), [TypedInput::Leave]);
        assert_eq!(fed("a\r~."), [input("a\r"), TypedInput::Leave]);
        assert_eq!(fed("a\n~?b"), [input("a\n"), TypedInput::Help, input("b")]);
        assert_eq!(fed("~?~."), [TypedInput::Help, TypedInput::Leave]);
    }

    #[test]
    fn input_after_leaving_is_dropped() {
        assert_eq!(fed("~.rm -r"), [TypedInput::Leave]);
    }

    #[test]
    fn a_tilde_that_is_not_an_escape_is_sent() {
        assert_eq!(fed("~~"), [input("~")]);
        assert_eq!(fed("~~."), [input("~.")]);
        assert_eq!(fed("~a"), [input("~a")]);
        assert_eq!(fed("~\r~."), [input("~\r"), TypedInput::Leave]);
    }

    #[test]
    fn bytes_may_arrive_one_by_one() {
        let mut machine = EscapeMachine::new();
        let mut typed = Vec::new();
        for byte in b"x\r~~~?\r~.".chunks(1) {
            typed.extend(machine.feed(byte));
        }
        let expected = [input("x"), input("\r"), input("~"), input("~"), input("?"), input("\r")];
        assert_eq!(typed[..6], expected);
        assert_eq!(typed[6..], [TypedInput::Leave]);
    }
}
