//! Scenarios as data, and their variables.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

pub(super) const DIRECTORY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/conformance/scenarios");

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Scenario {
    /// A description for readers.
    #[serde(rename = "about")]
    _about: String,
    /// Arguments of the server.
    #[serde(default)]
    pub(super) server: Vec<String>,
    /// The steps are played for each combination of these values.
    #[serde(default)]
    repeat: BTreeMap<String, Values>,
    /// At least this many cuts must happen.
    #[serde(default)]
    pub(super) cuts: usize,
    pub(super) steps: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Values {
    Each(Vec<Value>),
    /// The numbers from `from` to `to`, both included.
    Range {
        from: u64,
        to: u64,
    },
}

pub(super) type Variables = BTreeMap<String, Value>;

impl Scenario {
    pub(super) fn named(name: &str) -> Self {
        let path = format!("{DIRECTORY}/{}.json", name.replace('_', "-"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(super) fn combinations(&self) -> Vec<Variables> {
        self.repeat.iter().fold(vec![Variables::new()], |combinations, (name, values)| {
            let values = values.all();
            let extended = combinations.iter().flat_map(|combination| {
                values.iter().map(|value| {
                    let mut extended = combination.clone();
                    extended.insert(name.clone(), value.clone());
                    extended
                })
            });
            extended.collect()
        })
    }
}

impl Values {
    pub(super) fn all(&self) -> Vec<Value> {
        match self {
            Self::Each(values) => values.clone(),
            Self::Range { from, to } => (*from..=*to).map(Value::from).collect(),
        }
    }
}

/// Replaces each `${name}`, in names of members too. A text that is just one variable becomes the
/// value of that variable, of any type.
pub(super) fn substituted(value: &Value, variables: &Variables) -> Value {
    match value {
        Value::String(text) => {
            let mut text = text.clone();
            for (name, value) in variables {
                let variable = format!("${{{name}}}");
                if text == variable {
                    return value.clone();
                }
                if text.contains(&variable) {
                    let plain = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    text = text.replace(&variable, &plain);
                }
            }
            assert!(!text.contains("${"), "an unknown variable in {text:?}");
            Value::String(text)
        }
        Value::Array(values) => values.iter().map(|value| substituted(value, variables)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| {
                let name = substituted(&Value::String(name.clone()), variables);
                (name.as_str().unwrap().to_owned(), substituted(value, variables))
            })
            .collect(),
        other => other.clone(),
    }
}
