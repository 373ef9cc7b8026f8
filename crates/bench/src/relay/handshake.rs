//! Measures the cryptography of opening one stream, for both ends together: a client creates its
//! keys, and both ends agree on the keys of the stream. Network, registry and files are not
//! included.

use exec_server_relay::noise::{EnvironmentHandshake, HarnessHandshake, Identity, OsRng, Prologue};

use crate::Scale;
use crate::report::{Row, Target, Unit};
use crate::usage::thread_cpu_seconds;

const MAX_CPU_SECONDS: f64 = 0.003;
const PROLOGUE: Prologue<'_> = Prologue {
    environment_id: "box",
    registration_id: "00000000-0000-4000-8000-000000000000",
    stream_id: "00000000-0000-4000-8000-000000000001",
};
/// About as long as a real one.
const AUTHORIZATION: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let environment = Identity::generate(&mut OsRng);
    open_stream(&environment)?;
    let before = thread_cpu_seconds();
    for _ in 0..scale.starts {
        open_stream(&environment)?;
    }
    let each = (thread_cpu_seconds() - before) / scale.starts as f64;
    let row = Row::new("handshake of a relay, processor time of both ends", Unit::Seconds, each);
    Ok(vec![row.target(Target::AtMost(MAX_CPU_SECONDS))])
}

fn open_stream(environment: &Identity) -> anyhow::Result<()> {
    let identity = Identity::generate(&mut OsRng);
    let (harness, message) =
        <HarnessHandshake>::start(&identity, environment.public_key(), &PROLOGUE, AUTHORIZATION)?;
    let handshake = <EnvironmentHandshake>::read(environment, &PROLOGUE, &message)?;
    let (answer, _channel) = handshake.accept()?;
    harness.finish(&answer)?;
    Ok(())
}
