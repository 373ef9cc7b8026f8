//! Decides which traces are kept, according to `OTEL_TRACES_SAMPLER`.

use super::trace_context::RemoteParent;

/// The default of the specification.
pub(super) const DEFAULT_SAMPLER: Sampler =
    Sampler { root: RootDecision::Always, follows_parent: true };

/// Decides about a whole request: its spans are kept together or not at all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sampler {
    root: RootDecision,
    follows_parent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum RootDecision {
    Always,
    Never,
    /// Keeps ids whose low half, without its lowest bit, is below this value.
    Below(u64),
}

impl Sampler {
    /// Returns the sampler of this name, or `None` for an unknown name. Only the `traceidratio`
    /// samplers use `ratio`.
    pub(super) fn named(name: &str, ratio: f64) -> Option<Self> {
        let (root, follows_parent) = match name.strip_prefix("parentbased_") {
            Some(root) => (root, true),
            None => (name, false),
        };
        let root = match root {
            "always_on" => RootDecision::Always,
            "always_off" => RootDecision::Never,
            "traceidratio" => RootDecision::below(ratio),
            _ => return None,
        };
        Some(Self { root, follows_parent })
    }

    pub(super) fn is_sampled(&self, trace_id: [u8; 16], parent: Option<&RemoteParent>) -> bool {
        if let Some(parent) = parent.filter(|_| self.follows_parent) {
            return parent.is_sampled;
        }
        match self.root {
            RootDecision::Always => true,
            RootDecision::Never => false,
            RootDecision::Below(bound) => {
                let (_, low) = trace_id.split_at(8);
                let low = u64::from_be_bytes(low.try_into().expect("half of 16 bytes"));
                low >> 1 < bound
            }
        }
    }
}

impl RootDecision {
    fn below(ratio: f64) -> Self {
        if ratio >= 1.0 {
            return Self::Always;
        }
        Self::Below((ratio.max(0.0) * 2f64.powi(63)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(flags: &str) -> RemoteParent {
        let traceparent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        RemoteParent::parse(&traceparent, None).unwrap()
    }

    #[test]
    fn samplers_follow_the_names_of_the_specification() {
        let (yes, no) = (parent("01"), parent("00"));
        for (name, root, with_yes, with_no) in [
            ("always_on", true, true, true),
            ("always_off", false, false, false),
            ("traceidratio", false, false, false),
            ("parentbased_always_on", true, true, false),
            ("parentbased_always_off", false, true, false),
            ("parentbased_traceidratio", false, true, false),
        ] {
            let sampler = Sampler::named(name, 0.5).unwrap();
            let id = [0xff; 16];
            let decisions = [None, Some(&yes), Some(&no)].map(|it| sampler.is_sampled(id, it));
            assert_eq!(decisions, [root, with_yes, with_no], "{name}");
        }
        assert_eq!(Sampler::named("jaeger_remote", 1.0), None);
        assert_eq!(Sampler::named("parentbased_always_on", 1.0), Some(DEFAULT_SAMPLER));
    }

    #[test]
    fn a_ratio_keeps_a_share_of_the_traces() {
        let kept = |ratio, last: u8| {
            let mut id = [0; 16];
            id[8] = last;
            Sampler::named("traceidratio", ratio).unwrap().is_sampled(id, None)
        };
        assert!(kept(1.0, 0xff) && kept(0.5, 0x7f) && kept(0.25, 0x3f));
        assert!(!kept(0.5, 0x80) && !kept(0.25, 0x40) && !kept(0.0, 0));
    }
}
