//! The hash of a certificate, by which a client trusts a server without an authority.

use std::fmt;
use std::str::FromStr;

use crate::auth::sha256;

const PREFIX: &str = "SHA256:";

/// The SHA-256 of a DER certificate, written as `SHA256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a fingerprint; expected {PREFIX} and 64 hexadecimal digits")]
pub struct FingerprintParseError {
    text: String,
}

impl Fingerprint {
    #[must_use]
    pub fn of(certificate: &[u8]) -> Self {
        Self(sha256(certificate))
    }
}

/// Also accepts digits as `openssl x509 -fingerprint -sha256` prints them, with colons and in
/// capitals, and digits without the prefix.
impl FromStr for Fingerprint {
    type Err = FingerprintParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || FingerprintParseError { text: text.to_owned() };
        let has_prefix =
            text.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
        let digits = if has_prefix { &text[PREFIX.len()..] } else { text };
        parse_sha256(&digits.replace(':', "")).map(Self).ok_or_else(error)
    }
}

/// Parses a hash of 64 hexadecimal digits.
#[must_use]
pub fn parse_sha256(digits: &str) -> Option<[u8; 32]> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect();
    bytes?.try_into().ok()
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_form_parses() {
        let fingerprint = Fingerprint::of(b"certificate");
        let printed = fingerprint.to_string();
        let digits = printed.strip_prefix("SHA256:").unwrap();
        let pairs: Vec<_> = (0..32).map(|index| &digits[2 * index..2 * index + 2]).collect();
        let of_openssl = pairs.join(":").to_uppercase();
        for text in [&printed, digits, &of_openssl, &format!("sha256:{of_openssl}")] {
            assert_eq!(text.parse(), Ok(fingerprint), "{text}");
        }
        for text in ["", "SHA256:", "SHA256:ab", &digits[1..], &format!("{digits}0"), "MD5:ab"] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
        let not_hex = format!("zz{}", &digits[2..]);
        assert!(not_hex.parse::<Fingerprint>().is_err());
    }
}
