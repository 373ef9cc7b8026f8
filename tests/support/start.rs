//! Processes that tests start.

use exec_server::protocol::StartParams;
use serde_json::{Value, json};

/// Params of `process/start`.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    params: Value,
}

/// Returns a shell script with only `PATH` in its environment.
pub(crate) fn shell(id: &str, script: &str) -> Start {
    program(id, &["/bin/sh", "-c", script])
}

pub(crate) fn program(id: &str, argv: &[&str]) -> Start {
    Start {
        params: json!({
            "processId": id,
            "argv": argv,
            "cwd": "file:///tmp",
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        }),
    }
}

impl Start {
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.params[field] = value.into();
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.params["env"][name] = value.into();
        self
    }

    pub(crate) fn tty(self) -> Self {
        self.with("tty", true)
    }

    pub(crate) fn with_stdin(self) -> Self {
        self.with("pipeStdin", true)
    }

    pub(crate) fn id(&self) -> &str {
        self.params["processId"].as_str().expect("an id is text")
    }

    /// Returns the params for programs that use the library.
    pub(crate) fn typed(&self) -> StartParams {
        serde_json::from_str(&self.params.to_string()).unwrap()
    }

    pub(crate) fn params(&self) -> Value {
        self.params.clone()
    }
}
