//! The switch's table of the configuration, as the switch is told of it.

use api::v1::{SwitchSpec, Workers};
use channel::supervision::{Batching, Poll, SwitchSettings};

/// What the switch is to know of its table in the configuration.
pub(super) fn of(spec: &SwitchSpec) -> SwitchSettings {
    SwitchSettings {
        poll: match spec.poll {
            api::v1::Poll::Adaptive => Poll::Adaptive,
            api::v1::Poll::Always => Poll::Always,
        },
        batching: spec.batching.enabled.then_some(Batching {
            period_us: spec.batching.period_us.into(),
            threshold: spec.batching.threshold.into(),
        }),
        successor: false,
        waits: false,
        workers: match spec.workers {
            // The switch opens no paths, and so does not see a quota.
            Workers::Auto => Some(datapath::workers::automatic()),
            Workers::Count(count) => Some(count),
        },
    }
}
