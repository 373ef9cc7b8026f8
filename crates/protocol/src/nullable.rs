//! Optional members: `null` means the same as leaving the member out.

use serde::{Deserialize, Deserializer};

/// For fields that are not `Option` but have a default.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
