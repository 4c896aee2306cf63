//! Settings of the switch from its table in the configuration.

use api::v1::{Enabled, SwitchSpec, Workers};
use channel::supervision::{Coalescing, HelpersConfig, Poll, SwitchSettings};
use datapath::worker::idle::topology;

/// Value of `enabled = "auto"` on machines with several cores; docs/dev/scheduling.md has the
/// reasons.
const AUTO: bool = false;

/// Returns the settings for a table of the configuration.
pub(super) fn of(spec: &SwitchSpec) -> SwitchSettings {
    // The switch opens no paths, and cannot read the topology itself.
    let allowed = topology::allowed();
    SwitchSettings {
        cores: topology::read(topology::SYSTEM.as_ref(), &allowed),
        helpers: HelpersConfig {
            enabled: match spec.helpers.enabled {
                Enabled::Yes => true,
                Enabled::No => false,
                Enabled::Auto => AUTO && allowed.len() > 1,
            },
            backlog: spec.helpers.backlog,
            hysteresis_us: spec.helpers.hysteresis_us,
            cores: spec.helpers.cores.clone(),
        },
        poll: match spec.poll {
            api::v1::Poll::Adaptive => Poll::Adaptive,
            api::v1::Poll::Always => Poll::Always,
        },
        coalescing: spec.coalescing.enabled.then_some(Coalescing {
            period_us: spec.coalescing.period_us.into(),
            threshold: spec.coalescing.frames.into(),
        }),
        successor: false,
        waits: false,
        workers: match spec.workers {
            // The switch opens no paths, and does not see a CPU quota.
            Workers::Auto => Some(datapath::worker::workers::automatic()),
            Workers::Count(count) => Some(count),
        },
    }
}
