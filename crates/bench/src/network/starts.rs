//! Measures starts of processes with a managed network, one after another and many at once.

use super::Workspace;
use crate::Scale;
use crate::client::{Client, Surroundings};
use crate::endpoint::Nagle;
use crate::pair::Pair;
use crate::program::Program;
use crate::report::{Row, Target, Unit};
use crate::samples::Samples;
use crate::server::BenchServer;

/// The number of consecutive starts of one kind. A start leaves work behind: the server prepares
/// the next namespaces, and the kernel tears down old ones. In slices, this mostly slows starts of
/// the same kind.
const SLICE: usize = 20;
const BURST: usize = 16;
const LIMIT_IS: &str = "the same sandboxed start without network rules";

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let server = BenchServer::start()?;
    let workspace = Workspace::new("packages.example.org")?;
    let mut client = Client::connect(&server, Nagle::Off)?;
    let program = Program::nothing();
    let mut time = |slice, count, at_once| {
        let mut time_one = |surroundings, samples: &mut Samples| {
            samples.time(|| run_at_once(&mut client, &program, surroundings, at_once))
        };
        let mut run_slices = |samples: &mut Pair<Samples>| {
            for _ in 0..slice {
                time_one(workspace.managed(), &mut samples.ours)?;
            }
            for _ in 0..slice {
                time_one(workspace.sandboxed(), &mut samples.limit)?;
            }
            anyhow::Ok(())
        };
        let samples = || Pair { ours: Samples::default(), limit: Samples::default() };
        // The first slices are not counted.
        run_slices(&mut samples())?;
        let mut counted = samples();
        for _ in 0..count / slice {
            run_slices(&mut counted)?;
        }
        anyhow::Ok(Pair { ours: counted.ours.median(), limit: counted.limit.median() })
    };
    let starts = time(SLICE, scale.starts, 1)?;
    let bursts = time(1, scale.starts / BURST, BURST)?;
    Ok(vec![
        starts
            .row("start with a managed network, p50", Unit::Seconds, LIMIT_IS)
            .target(Target::RatioAtMost(1.3)),
        bursts.row(
            &format!("{BURST} starts at once with a managed network, p50"),
            Unit::Seconds,
            LIMIT_IS,
        ),
    ])
}

fn run_at_once(
    client: &mut Client,
    program: &Program,
    surroundings: Surroundings<'_>,
    count: usize,
) -> anyhow::Result<()> {
    for _ in 0..count {
        client.start_in(program, surroundings)?;
    }
    for _ in 0..count {
        client.until_closed(|_| ())?;
    }
    Ok(())
}
