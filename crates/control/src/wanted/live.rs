//! What can change while Lasthop runs.
//!
//! The switch is told of its table when it starts, and workers, their engines and their sleep are made from it: only the name is
//! everybody's. Everything that is wanted of segments and ports can change.

use api::v1::SwitchSpec;

use super::check::{At, quoted};
use super::invalid::{Invalid, Place, Why};

/// Checks that a running switch can be what is wanted.
///
/// # Errors
/// The first setting for which it would have to be started anew.
pub fn check(is: &SwitchSpec, wanted: &SwitchSpec) -> Result<(), Invalid> {
    let differs = settings(is).into_iter().zip(settings(wanted));
    let mut differs = differs.filter(|((_, is), (_, wanted))| is != wanted);
    match differs.next() {
        Some(((at, is), (_, wanted))) => Err(fixed(at, &is, &wanted)),
        None => Ok(()),
    }
}

/// Everything that cannot change, as the configuration spells it.
fn settings(switch: &SwitchSpec) -> Vec<(At, String)> {
    // Whoever adds a setting has to say here whether it can change.
    let SwitchSpec {
        name: _,
        poll,
        workers,
        batching,
        guest_state,
        copy_engine,
        offload,
        socket_dirs,
    } = switch;
    let own = |key, value: &dyn ToString| (At(Place::Switch, key), value.to_string());
    let word = |key, value: &str| (At(Place::Switch, key), quoted(value));
    let batches = |key, value: &dyn ToString| (At(Place::Batching, key), value.to_string());
    let helpers = |key, value: &dyn ToString| (At(Place::Offload, key), value.to_string());
    vec![
        word("poll", poll.as_str()),
        own("workers", workers),
        word("guest_state", guest_state.as_str()),
        word("copy_engine", copy_engine.as_str()),
        batches("enabled", &batching.enabled),
        batches("period_us", &batching.period_us),
        batches("threshold", &batching.threshold),
        helpers("enabled", &offload.enabled),
        helpers("mark", &offload.mark),
        helpers("hysteresis_us", &offload.hysteresis_us),
        helpers("cores", &format!("{:?}", offload.cores)),
        own("socket_dirs", &format!("{socket_dirs:?}")),
    ]
}

fn fixed(at: At, is: &str, wanted: &str) -> Invalid {
    let expected = format!("{is}, with which Lasthop was started: another takes a restart");
    Invalid {
        why: Why::Fixed,
        ..at.wrong(expected, wanted)
    }
}

#[cfg(test)]
mod tests {
    use api::v1::{Enabled, GuestStates, Poll, Workers};

    use super::*;

    #[test]
    fn only_the_name_can_change() {
        let is = SwitchSpec::default();
        let renamed = SwitchSpec {
            name: "other".to_owned(),
            ..is.clone()
        };
        assert_eq!(check(&is, &renamed), Ok(()));
        let changed = |change: &dyn Fn(&mut SwitchSpec)| {
            let mut wanted = is.clone();
            change(&mut wanted);
            let invalid = check(&is, &wanted).unwrap_err();
            assert_eq!(invalid.why, Why::Fixed);
            invalid.place.key(invalid.key)
        };
        assert_eq!(changed(&|s| s.poll = Poll::Always), "switch.poll");
        assert_eq!(changed(&|s| s.workers = Workers::Auto), "switch.workers");
        let guests = changed(&|s| s.guest_state = GuestStates::Off);
        assert_eq!(guests, "switch.guest_state");
        let copies = changed(&|s| s.copy_engine = api::v1::CopyEngine::Auto);
        assert_eq!(copies, "switch.copy_engine");
        let batching = changed(&|s| s.batching.enabled = false);
        assert_eq!(batching, "switch.batching.enabled");
        let period = changed(&|s| s.batching.period_us = 7);
        assert_eq!(period, "switch.batching.period_us");
        let threshold = changed(&|s| s.batching.threshold = 7);
        assert_eq!(threshold, "switch.batching.threshold");
        let helpers = changed(&|s| s.offload.enabled = Enabled::Yes);
        assert_eq!(helpers, "switch.offload.enabled");
        assert_eq!(changed(&|s| s.offload.mark = 7), "switch.offload.mark");
        let hysteresis = changed(&|s| s.offload.hysteresis_us = 7);
        assert_eq!(hysteresis, "switch.offload.hysteresis_us");
        assert_eq!(
            changed(&|s| s.offload.cores = vec![7]),
            "switch.offload.cores"
        );
        let dirs = changed(&|s| s.socket_dirs = vec!["/srv".to_owned()]);
        assert_eq!(dirs, "switch.socket_dirs");
    }
}
