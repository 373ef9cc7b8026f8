//! Colours, used only on terminals and only without `NO_COLOR`.

use std::fmt;
use std::io::IsTerminal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Red,
    Green,
    Magenta,
    Dim,
}

/// Whether to colour the output to one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint {
    wanted: bool,
}

impl Paint {
    /// Follows the `NO_COLOR` convention: any value that is not empty disables colours.
    pub(crate) fn for_stream(stream: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { wanted: stream.is_terminal() && !refused }
    }

    pub(crate) fn is_wanted(self) -> bool {
        self.wanted
    }

    pub(crate) fn apply(self, colour: Option<Colour>, text: impl fmt::Display) -> String {
        let code = match colour.filter(|_| self.wanted) {
            None => return text.to_string(),
            Some(Colour::Red) => 31,
            Some(Colour::Green) => 32,
            Some(Colour::Magenta) => 35,
            Some(Colour::Dim) => 2,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_coloured_only_on_request() {
        let (on, off) = (Paint { wanted: true }, Paint { wanted: false });
        assert_eq!(on.apply(Some(Colour::Green), "up"), "\x1b[32mup\x1b[0m");
        assert_eq!(on.apply(None, "up"), "up");
        assert_eq!(off.apply(Some(Colour::Red), "up"), "up");
    }
}
