//! Settings of the switch in the encoding of versions 10 and 11 of the record, which have no
//! `kick_us`: version 12 has it among its additions.

use channel::cores::CoreFacts;
use channel::supervision::{Coalescing, HelpersConfig, Poll, SwitchSettings};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
struct Encoded {
    poll: Poll,
    workers: Option<u16>,
    /// `period_us` and `threshold`.
    coalescing: Option<(u32, u32)>,
    helpers: HelpersConfig,
    cores: Vec<CoreFacts>,
    successor: bool,
    waits: bool,
}

pub(super) fn serialize<S: Serializer>(
    settings: &SwitchSettings,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let SwitchSettings {
        poll,
        workers,
        coalescing,
        helpers,
        cores,
        successor,
        waits,
    } = settings.clone();
    let encoded = Encoded {
        poll,
        workers,
        coalescing: coalescing.map(|coalescing| (coalescing.period_us, coalescing.threshold)),
        helpers,
        cores,
        successor,
        waits,
    };
    encoded.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SwitchSettings, D::Error> {
    let Encoded {
        poll,
        workers,
        coalescing,
        helpers,
        cores,
        successor,
        waits,
    } = Encoded::deserialize(deserializer)?;
    let coalescing = coalescing.map(|(period_us, threshold)| Coalescing {
        period_us,
        threshold,
        kick_us: default_kick_us(),
    });
    Ok(SwitchSettings {
        poll,
        workers,
        coalescing,
        helpers,
        cores,
        successor,
        waits,
    })
}

/// Returns the value for a version before, whose configuration does not have the key.
pub(super) fn default_kick_us() -> u32 {
    api::v1::CoalescingSpec::default().kick_us.into()
}
