//! The switch's table of the configuration, as the switch is told of it.

use api::v1::{SwitchSpec, Workers};
use channel::supervision::{Poll, SwitchSettings};

/// What the switch is to know of its table in the configuration.
pub(super) fn of(spec: &SwitchSpec) -> SwitchSettings {
    SwitchSettings {
        poll: match spec.poll {
            api::v1::Poll::Adaptive => Poll::Adaptive,
            api::v1::Poll::Always => Poll::Always,
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
