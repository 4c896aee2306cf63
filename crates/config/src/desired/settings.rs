//! Settings of the switch from its table in the configuration.

use api::v1::{Enabled, SwitchSpec, Workers};
use channel::supervision::{Coalescing, HelpersConfig, SwitchSettings};

/// Value of `enabled = "auto"`; docs/dev/scheduling.md has the reasons.
const AUTO: bool = false;

/// Returns the settings for a table of the configuration, without the host's cores.
#[must_use]
pub fn switch_settings(spec: &SwitchSpec) -> SwitchSettings {
    SwitchSettings {
        cores: Vec::new(),
        helpers: HelpersConfig {
            enabled: match spec.helpers.enabled {
                Enabled::Yes => true,
                Enabled::No => false,
                Enabled::Auto => AUTO,
            },
            backlog: spec.helpers.backlog,
            hysteresis_us: spec.helpers.hysteresis_us,
            cores: spec.helpers.cores.clone(),
        },
        poll: spec.poll,
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
