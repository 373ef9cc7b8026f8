//! Rejects members whose name is spelled with the wrong case.
//!
//! Unknown members are ignored, so that newer clients can talk to older servers. But `Sandbox` in
//! place of `sandbox` is a mistake that must not start a process without its sandbox.

use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Error, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};

/// Deserializes a struct, and refuses an unknown member that differs from a known one only in case.
pub(crate) struct CaseChecked<D>(pub(crate) D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for CaseChecked<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, known, Checking { inner: visitor, known })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Wraps a visitor, and then the map access that it receives.
struct Checking<T> {
    inner: T,
    known: &'static [&'static str],
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Checking<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Checking { inner: members, known: self.known })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Checking<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(key) = self.inner.next_key::<Key<'de>>()? else { return Ok(None) };
        let name = match &key {
            Key::Borrowed(name) => name,
            Key::Owned(name) => name.as_str(),
        };
        if !self.known.contains(&name)
            && let Some(known) = self.known.iter().find(|known| known.eq_ignore_ascii_case(name))
        {
            let message = format!("unknown member {name:?}; did you mean {known:?}?");
            return Err(A::Error::custom(message));
        }
        match key {
            Key::Borrowed(name) => seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some),
            Key::Owned(name) => seed.deserialize(name.into_deserializer()).map(Some),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }
}

/// Owned only if the key contains escapes.
enum Key<'de> {
    Borrowed(&'de str),
    Owned(String),
}

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member's name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Key<'de>, E> {
                Ok(Key::Borrowed(name))
            }

            fn visit_str<E>(self, name: &str) -> Result<Key<'de>, E> {
                Ok(Key::Owned(name.to_owned()))
            }
        }

        deserializer.deserialize_str(KeyVisitor)
    }
}
