//! Settings of the switch from its table in the configuration.

use api::v1::{PollLimit, SwitchSpec, Workers};
use ipc::supervision::{Coalescing, SwitchSettings};

/// Returns the settings for a table of the configuration.
#[must_use]
pub fn switch_settings(spec: &SwitchSpec) -> SwitchSettings {
    SwitchSettings {
        poll: spec.poll,
        poll_us: match spec.poll_us {
            PollLimit::Auto => None,
            PollLimit::Micros(micros) => Some(micros),
        },
        coalescing: spec.coalescing.enabled.then_some(Coalescing {
            period_us: spec.coalescing.period_us.into(),
            threshold: spec.coalescing.frames.into(),
            kick_us: spec.coalescing.kick_us.into(),
        }),
        successor: false,
        waits: false,
        workers: match spec.workers {
            Workers::Auto => None,
            Workers::Count(count) => Some(count),
        },
    }
}
