//! A misbehaving bubblewrap.

use std::sync::Arc;

use exec_server_host::process::launch::LaunchError;
use exec_server_host::sandbox::{Plan, SandboxStep, Tier};

use super::scene::Scene;

pub(crate) async fn a_bubblewrap_that_exits_is_reported(scene: &Scene) {
    for (program, script, expected) in [("/bin/false", "", 1), ("/bin/true", "", 0)] {
        let plan = Plan { tier: Tier::Bubblewrap(program.into()), ..(*scene.plan(&[])).clone() };
        let command = scene.command(&Arc::new(plan), script);
        let error = scene.launcher.launch(command).await.map(drop).unwrap_err();
        let LaunchError::Sandbox { step: SandboxStep::BubblewrapEnded { code }, .. } = error else {
            panic!("{program}: {error}");
        };
        assert_eq!(code, expected, "{program}");
    }
}
