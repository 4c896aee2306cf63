//! Connection tracking: settings for the switch, the table, and the rule that needs it.

use api::v1::{ConnectionsSpec, DesiredState};
use conntrack::table::Layout;
use conntrack::{Settings, Timeout};
use ipc::connections::{ConnectionSettings, MAX_TABLE_BYTES};

use super::access::{compiled, placed};
use super::invalid::Invalid;

/// Milliseconds in a second.
const SECOND: u32 = 1000;

/// Returns the settings of a checked table of the configuration.
#[must_use]
pub fn connection_settings(spec: &ConnectionsSpec) -> ConnectionSettings {
    let own: Vec<_> = spec.timeouts.all().into_iter().collect();
    let usual = Settings::default().timeouts;
    let timeout = |which: &Timeout| {
        let set = own.iter().find(|(name, _)| *name == which.name());
        let set = set.and_then(|(_, seconds)| *seconds);
        set.map_or(usual.get(*which), |seconds| seconds.saturating_mul(SECOND))
    };
    ConnectionSettings {
        max: layout_of(spec).capacity(),
        pick_up: spec.pick_up,
        strict: spec.strict,
        recovery_ms: spec.recovery.saturating_mul(SECOND),
        timeouts_ms: Timeout::ALL.iter().map(timeout).collect(),
    }
}

/// Returns the layout of the table.
#[must_use]
pub fn layout_of(spec: &ConnectionsSpec) -> Layout {
    const { assert!(Layout::new(u32::MAX).bytes() <= MAX_TABLE_BYTES) };
    Layout::new(u32::try_from(spec.max).unwrap_or(u32::MAX))
}

/// Returns the error of the first rule that needs the table, with this reason why there is none;
/// `None` if no rule does. The state is valid.
#[must_use]
pub fn without_table(state: &DesiredState, why: &str) -> Option<Invalid> {
    let rules = compiled(state).ok()?.rules;
    let refused = rules.refuse_stateful(why);
    refused.err().map(|error| placed(&state.access, &error))
}

#[cfg(test)]
mod tests {
    use api::v1::TimeoutsSpec;

    use super::*;

    #[test]
    fn settings_are_in_milliseconds_and_without_others_the_usual() {
        let usual = connection_settings(&ConnectionsSpec::default());
        let defaults = Settings::default();
        let all = Timeout::ALL
            .iter()
            .map(|which| defaults.timeouts.get(*which));
        assert_eq!(usual.timeouts_ms, all.collect::<Vec<_>>());
        assert_eq!((usual.max, usual.recovery_ms), (1 << 18, 60_000));
        assert_eq!((usual.pick_up, usual.strict), (true, true));
        let own = connection_settings(&ConnectionsSpec {
            max: 1025,
            timeouts: TimeoutsSpec {
                udp: Some(7),
                ..TimeoutsSpec::default()
            },
            ..ConnectionsSpec::default()
        });
        assert_eq!(
            (own.max, own.timeouts_ms[Timeout::Udp as usize]),
            (1088, 7000)
        );
        assert_eq!(own.timeouts_ms[0], usual.timeouts_ms[0]);
    }

    #[test]
    fn every_timeout_has_a_key_of_its_name() {
        let keys = TimeoutsSpec::default().all().map(|(name, _)| name);
        let names = Timeout::ALL.iter().map(|which| which.name());
        assert_eq!(names.collect::<Vec<_>>(), keys);
    }
}
