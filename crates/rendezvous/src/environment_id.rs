use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

const MAX_BYTES: usize = 128;

/// The name of an environment: 1 to 128 letters, digits and `_.:@-`.
///
/// It appears in URLs, logs and on the status page, so it has no characters that are special there.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EnvironmentId(Arc<str>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an environment id must have 1 to {MAX_BYTES} letters, digits, '_', '.', ':', '@' or '-'")]
pub struct InvalidEnvironmentId;

impl EnvironmentId {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EnvironmentId {
    type Err = InvalidEnvironmentId;

    fn from_str(text: &str) -> Result<Self, InvalidEnvironmentId> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:@-".contains(&byte);
        match (1..=MAX_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
            true => Ok(Self(text.into())),
            false => Err(InvalidEnvironmentId),
        }
    }
}

impl TryFrom<String> for EnvironmentId {
    type Error = InvalidEnvironmentId;

    fn try_from(text: String) -> Result<Self, InvalidEnvironmentId> {
        text.parse()
    }
}

impl From<EnvironmentId> for String {
    fn from(id: EnvironmentId) -> Self {
        id.as_str().to_owned()
    }
}

impl Borrow<str> for EnvironmentId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for EnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_no_characters_with_a_meaning_elsewhere() {
        for id in ["a", "env_7f.x:1@b-c", &"x".repeat(128)] {
            assert_eq!(id.parse::<EnvironmentId>().unwrap().as_str(), id);
        }
        for id in ["", "a/b", "a b", "<b>", "é", "a\n", &"x".repeat(129)] {
            assert_eq!(id.parse::<EnvironmentId>(), Err(InvalidEnvironmentId), "{id:?}");
        }
    }
}
