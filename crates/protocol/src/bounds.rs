//! Limits that hold before a message is believed.
//!
//! A message is walked once without building anything: values are counted and repeated keys refused.
//! Depth needs no code here: serde_json stops at [`MAX_JSON_DEPTH`], long before the stack does.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Largest message in either direction.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Most JSON values (containers, scalars; keys do not count) in one message.
pub const MAX_JSON_VALUES: usize = 262_144;
/// Deepest nesting; serde_json's own limit.
pub const MAX_JSON_DEPTH: usize = 127;

/// Refuses a text that is not JSON or not within the limits.
pub(crate) fn check(text: &[u8]) -> Result<(), serde_json::Error> {
    let mut values = 0;
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    Count { values: &mut values }.deserialize(&mut deserializer)?;
    deserializer.end()
}

struct Count<'a> {
    values: &'a mut usize,
}

impl Count<'_> {
    fn one<E: Error>(&mut self) -> Result<(), E> {
        *self.values += 1;
        if *self.values > MAX_JSON_VALUES {
            return Err(E::custom(format_args!(
                "more than {MAX_JSON_VALUES} values in one message"
            )));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<(), D::Error> {
        self.one()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Count { values: &mut *self.values })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(Key(key)) = map.next_key_seed(KeySeed)? {
            if let Some(repeated) = keys.replace(key) {
                return Err(A::Error::custom(format_args!("duplicate key {repeated:?}")));
            }
            map.next_value_seed(Count { values: &mut *self.values })?;
        }
        Ok(())
    }
}

/// A key, borrowed from the message unless it holds escapes.
struct Key<'de>(Cow<'de, str>);
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Key<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key<'de>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Key<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Borrowed(key)))
    }

    fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Owned(key.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_json_passes() {
        check(br#"{"a":[1,2.5,-3,true,null,"x\n"],"b":{"a":{}}} "#).unwrap();
    }

    #[test]
    fn duplicate_keys_are_refused_at_any_depth_and_in_any_spelling() {
        for text in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"a":1}}]"#, r#"{"a":1,"\u0061":2}"#] {
            let error = check(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("duplicate key \"a\""), "{error}");
        }
    }

    #[test]
    fn values_are_counted() {
        // The array itself is a value too.
        let fits = format!("[{}0]", "0,".repeat(MAX_JSON_VALUES - 2));
        check(fits.as_bytes()).unwrap();
        let one_more = format!("[{}0]", "0,".repeat(MAX_JSON_VALUES - 1));
        assert!(check(one_more.as_bytes()).unwrap_err().to_string().contains("262144 values"));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        check(deep(MAX_JSON_DEPTH).as_bytes()).unwrap();
        assert!(check(deep(MAX_JSON_DEPTH + 1).as_bytes()).is_err());
        assert!(check("[".repeat(100_000).as_bytes()).is_err());
        assert!(check("{\"a\":".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn bad_utf8_and_trailing_text_are_refused() {
        assert!(check(b"\"\xff\"").is_err());
        assert!(check(b"{} {}").is_err());
        assert!(check(b"").is_err());
    }
}
