//! The limits of a process: those of its start, or else the operator's defaults, lowered to the
//! maxima of the operator and the token.

use std::time::Duration;

use exec_server_host::process::launch::{ExitRecord, Launcher};
use exec_server_host::process::limits::{Limit, Limits, LimitsSupport, LimitsTier as HostTier};
use exec_server_protocol::{
    Cpus, EffectiveLimits, ErrorKind, LimitName, LimitValues, LimitsRequest, LimitsTier,
    RequiredLimits, RpcError,
};

use super::start::StartContext;
use crate::blocking::allow_blocking;

#[derive(Debug, Clone)]
pub(crate) struct GrantedLimits {
    values: LimitValues,
    /// `None` if nothing is limited and no tier is required.
    tier: Option<HostTier>,
    timeout_ms: Option<u64>,
}

impl GrantedLimits {
    pub(super) fn grant(
        context: StartContext<'_>,
        request: Option<&LimitsRequest>,
        timeout_ms: Option<u64>,
    ) -> Result<Self, RpcError> {
        let config = context.config;
        let asked = request.map(LimitsRequest::values).unwrap_or_default();
        asked.check().map_err(|error| {
            RpcError::invalid_params(error.to_string()).with_kind(ErrorKind::BadLimits)
        })?;
        let values = asked
            .or(config.default_limits)
            .lowered_to(config.max_limits)
            .lowered_to(context.token_limits);
        // One timer enforces the timeout and the wall-time limit.
        let timeout_ms = match (timeout_ms, values.wall_time_ms) {
            (Some(timeout), Some(wall)) => Some(timeout.min(wall)),
            (timeout, wall) => timeout.or(wall),
        };
        let is_required =
            request.and_then(|request| request.required) == Some(RequiredLimits::Cgroup);
        // Determined only where it matters: the first call may have to probe the machine.
        let support = (is_required || !values.is_empty()).then(|| limits_support(context.launcher));
        if let Some(support) = support.as_ref().filter(|it| is_required && !it.is_kept_by_kernel())
        {
            return Err(unavailable(support));
        }
        Ok(Self { values, tier: support.map(|support| support.tier), timeout_ms })
    }

    /// Returns all limits but the wall time, which is the deadline of the process.
    pub(super) fn of_host(&self) -> Limits {
        Limits {
            memory_bytes: self.values.memory_bytes,
            pids: self.values.pids,
            cpu_time: self.values.cpu_time_ms.map(Duration::from_millis),
            cpu_thousandths: self.values.cpus.map(Cpus::thousandths),
            open_files: self.values.open_files,
            file_size_bytes: self.values.file_size_bytes,
            core_size_bytes: self.values.core_size_bytes,
        }
    }

    /// Returns the deadline: that of the start, or the wall-time limit if that comes first.
    pub(crate) fn timeout_ms(&self) -> Option<u64> {
        self.timeout_ms
    }

    /// Returns `None` if nothing is limited.
    pub(crate) fn reported(&self) -> Option<EffectiveLimits> {
        if self.values.is_empty() {
            return None;
        }
        let tier = self.tier?;
        let not_enforced = self.of_host().not_enforced(tier).into_iter().map(name).collect();
        Some(EffectiveLimits::new(wire_tier(tier), self.values, not_enforced))
    }

    pub(super) fn hit(&self, exit: &ExitRecord, timed_out: bool) -> Vec<LimitName> {
        // A shorter deadline of the start does not count as a limit.
        let is_wall = timed_out && self.values.wall_time_ms == self.timeout_ms;
        exit.limits_hit.iter().map(name).chain(is_wall.then_some(LimitName::WallTime)).collect()
    }
}

/// Early callers may wait for the probe.
pub(crate) fn limits_support(launcher: &Launcher) -> LimitsSupport {
    launcher.known_limits().unwrap_or_else(|| allow_blocking(|| launcher.limits()))
}

pub(crate) fn wire_tier(tier: HostTier) -> LimitsTier {
    match tier {
        HostTier::Cgroup => LimitsTier::Cgroup,
        HostTier::Systemd => LimitsTier::Systemd,
        HostTier::Sampling | HostTier::ProcessOnly => LimitsTier::Rlimit,
    }
}

fn name(limit: Limit) -> LimitName {
    match limit {
        Limit::Memory => LimitName::Memory,
        Limit::Pids => LimitName::Pids,
        Limit::CpuTime => LimitName::CpuTime,
        Limit::Cpus => LimitName::Cpus,
        Limit::FileSize => LimitName::FileSize,
    }
}

fn unavailable(support: &LimitsSupport) -> RpcError {
    let obstacle = support.obstacle.as_deref().unwrap_or("there are no cgroups");
    let message = format!(
        "limits of tier \"cgroup\" are required, but this server has tier \"rlimit\": {obstacle}; {}",
        LimitsSupport::REMEDY
    );
    RpcError::invalid_request(message).with_kind(ErrorKind::LimitsUnavailable)
}
