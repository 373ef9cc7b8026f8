//! How much is looked at for one request. Names and patterns come from whoever asks, and looking at them cannot be interrupted.

/// A bigger tree is an error: half an answer would grant or hide half.
const MAX_NAMES: usize = 200_000;
/// Symbols of patterns times bytes of names. No comparison takes more steps than that, and most take far fewer.
const MAX_STEPS: usize = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    #[error("{max} names")]
    Names { max: usize },
    #[error("{max} comparisons of characters")]
    Steps { max: usize },
}

#[derive(Debug)]
pub(in crate::sandbox) struct Effort {
    names: usize,
    steps: usize,
}

impl Effort {
    pub(in crate::sandbox) fn new() -> Self {
        Self { names: MAX_NAMES, steps: MAX_STEPS }
    }

    /// For one more name, which is so many bytes long and compared with patterns of so many symbols.
    pub(in crate::sandbox) fn spend(&mut self, symbols: usize, len: usize) -> Result<(), TooMuch> {
        let names = self.names.checked_sub(1).ok_or(TooMuch::Names { max: MAX_NAMES })?;
        let steps = self.steps.checked_sub(symbols.saturating_mul(len));
        self.steps = steps.ok_or(TooMuch::Steps { max: MAX_STEPS })?;
        self.names = names;
        Ok(())
    }

    /// The same names will be looked at again.
    #[cfg(target_os = "linux")]
    pub(in crate::sandbox) fn start_over(&mut self) {
        self.names = MAX_NAMES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_comparisons_are_counted() {
        let mut effort = Effort::new();
        for _ in 0..MAX_NAMES {
            effort.spend(0, 10).unwrap();
        }
        assert_eq!(effort.spend(0, 10), Err(TooMuch::Names { max: MAX_NAMES }));
        let mut effort = Effort::new();
        effort.spend(MAX_STEPS, 1).unwrap();
        assert_eq!(effort.spend(1, 1), Err(TooMuch::Steps { max: MAX_STEPS }));
        assert!(Effort::new().spend(usize::MAX, 2).is_err());
    }
}
