//! The switch's table of the configuration, as the switch is told of it.

use api::v1::{Enabled, SwitchSpec, Workers};
use channel::supervision::{Batching, CopyEngine, Offload, Poll, SwitchSettings};
use datapath::idle::topology;

/// What `enabled = "auto"` comes to where there are several cores; docs/SCHEDULING.md says why.
const AUTO: bool = false;

/// What the switch is to know of its table in the configuration.
pub(super) fn of(spec: &SwitchSpec) -> SwitchSettings {
    // The switch opens no paths, and so cannot look for itself.
    let allowed = topology::allowed();
    SwitchSettings {
        cores: topology::read(topology::SYSTEM.as_ref(), &allowed),
        offload: Offload {
            enabled: match spec.offload.enabled {
                Enabled::Yes => true,
                Enabled::No => false,
                Enabled::Auto => AUTO && allowed.len() > 1,
            },
            mark: spec.offload.mark,
            hysteresis_us: spec.offload.hysteresis_us,
            cores: spec.offload.cores.clone(),
        },
        poll: match spec.poll {
            api::v1::Poll::Adaptive => Poll::Adaptive,
            api::v1::Poll::Always => Poll::Always,
        },
        batching: spec.batching.enabled.then_some(Batching {
            period_us: spec.batching.period_us.into(),
            threshold: spec.batching.threshold.into(),
        }),
        copy_engine: match spec.copy_engine {
            api::v1::CopyEngine::Thread => CopyEngine::Thread,
            // DSA is refused before (`control::wanted`); so there is none that "auto" could find.
            api::v1::CopyEngine::Cpu | api::v1::CopyEngine::Dsa | api::v1::CopyEngine::Auto => {
                CopyEngine::Cpu
            }
        },
        successor: false,
        waits: false,
        workers: match spec.workers {
            // The switch opens no paths, and so does not see a quota.
            Workers::Auto => Some(datapath::workers::automatic()),
            Workers::Count(count) => Some(count),
        },
    }
}
