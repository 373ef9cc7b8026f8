use serde::{Deserialize, Deserializer, Serialize, de};

/// The longest member: an ML-KEM-768 key has 1,580 characters in base64.
const MAX_MEMBER_BYTES: usize = 2048;

/// A public key object as its owner wrote it. The rendezvous compares it byte for byte and forwards
/// it, but cannot use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicKey {
    #[serde(deserialize_with = "bounded")]
    pub suite: String,
    #[serde(deserialize_with = "bounded")]
    pub x25519_public_key: String,
    #[serde(deserialize_with = "bounded")]
    pub mlkem768_public_key: String,
}

fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match (1..=MAX_MEMBER_BYTES).contains(&text.len()) {
        true => Ok(text),
        false => Err(de::Error::custom(format_args!(
            "a member of a public key has {} bytes; expected 1 to {MAX_MEMBER_BYTES}",
            text.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_long_members_are_refused() {
        let key = |suite: &str, more: &str| {
            let text = format!(
                r#"{{"suite":"{suite}","x25519_public_key":"a","mlkem768_public_key":"b"{more}}}"#
            );
            serde_json::from_str::<PublicKey>(&text)
        };
        assert!(key("s", "").is_ok());
        assert!(key("", "").is_err());
        assert!(key(&"s".repeat(2049), "").is_err());
        assert!(key("s", r#","extra":1"#).is_err());
        assert!(serde_json::from_str::<PublicKey>(r#"{"suite":"s"}"#).is_err());
    }
}
