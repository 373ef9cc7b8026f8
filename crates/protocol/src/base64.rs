//! Raw bytes inside JSON.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::spare;

/// Bytes that are standard, padded base64 on the wire. Derefs to [`Bytes`].
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Base64Bytes(Bytes);

impl Base64Bytes {
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl Deref for Base64Bytes {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Base64Bytes {
    /// Shows the length only: input and output must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Base64Bytes({} bytes)", self.0.len())
    }
}

impl<T: Into<Bytes>> From<T> for Base64Bytes {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64_simd::STANDARD.encode_to_string(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Base64Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a base64 string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Base64Bytes, E> {
                self.visit_bytes(text.as_bytes())
            }

            fn visit_bytes<E: de::Error>(self, text: &[u8]) -> Result<Base64Bytes, E> {
                let mut bytes =
                    spare::buffer(base64_simd::STANDARD.estimated_decoded_length(text.len()));
                match base64_simd::STANDARD.decode_append(text, &mut bytes) {
                    Ok(()) => Ok(bytes.into()),
                    Err(_) => {
                        Err(E::custom("invalid base64 (standard alphabet with padding expected)"))
                    }
                }
            }
        }
        // Deserializes as bytes: the decoder rejects every byte outside its alphabet, so scanning
        // megabytes for UTF-8 and control characters first is unnecessary.
        deserializer.deserialize_bytes(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let bytes = Base64Bytes::from((0..=255u8).collect::<Vec<_>>());
        let text = serde_json::to_string(&bytes).unwrap();
        assert_eq!(serde_json::from_str::<Base64Bytes>(&text).unwrap(), bytes);
    }

    #[test]
    fn any_json_spelling_of_a_string_decodes() {
        let expected = Base64Bytes::from(b"ab?".to_vec());
        for json in [r#""YWI/""#, r#""YWI\/""#, r#""\u0059WI/""#] {
            assert_eq!(serde_json::from_str::<Base64Bytes>(json).unwrap(), expected, "{json}");
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::from_value::<Base64Bytes>(value).unwrap(), expected, "{json}");
        }
    }

    #[test]
    fn the_error_for_bad_input_mentions_base64() {
        for text in [
            "\"a\"",
            "\"a===\"",
            "\"!!!!\"",
            "\"YQ\"",
            "\"YW\nI/\"",
            "\"YWI\u{e9}\"",
            "\"\\ud800\"",
            "7",
            "null",
            "[89,87]",
        ] {
            let error = serde_json::from_str::<Base64Bytes>(text).unwrap_err().to_string();
            assert!(error.contains("base64"), "{text}: {error}");
        }
    }
}
