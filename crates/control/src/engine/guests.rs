//! vCPU states of guests: the configuration for the supervisor, and its report.

use api::v1::{GuestStateStatus, GuestStates};
use channel::supervision::{self, GuestWatch, WatchedGuests};
use port::PortId;

use super::Engine;

impl Engine {
    /// Returns the desired configuration.
    pub(super) fn guest_watch(&self) -> GuestWatch {
        let desired = &self.saved.desired;
        let threads = desired.ports.iter().filter_map(|spec| {
            let id = self.saved.numbers.ports.get(&spec.name)?;
            Some((*id, spec.vcpu_threads.clone()?))
        });
        GuestWatch {
            by: match desired.switch.guest_state {
                GuestStates::Auto => supervision::GuestStates::Auto,
                GuestStates::Bpf => supervision::GuestStates::Bpf,
                GuestStates::Proc => supervision::GuestStates::Proc,
                GuestStates::Off => supervision::GuestStates::Off,
            },
            threads: threads.collect(),
        }
    }
}

/// Returns the status for the switch as a whole.
pub(super) fn status(watched: &WatchedGuests) -> GuestStateStatus {
    let words = [GuestStates::Bpf, GuestStates::Proc, GuestStates::Off];
    let by = words.into_iter().find(|word| word.as_str() == watched.by);
    GuestStateStatus {
        by: by.unwrap_or_default(),
        reason: watched.reason.clone(),
    }
}

/// Returns the number of a port's threads that are followed.
pub(super) fn threads_of(watched: &WatchedGuests, port: Option<PortId>) -> u32 {
    let all = watched.threads.iter();
    let of_port = all.filter(|(id, _)| Some(*id) == port);
    of_port.map(|(_, count)| *count).sum()
}
