//! An interface of the host in place of a front end.

use ipc::driving::DriverCounters;
use port::PortId;
use wire::virtio::features::Features;

use crate::worker::workers::Workers;

/// An interface that the workers serve.
#[derive(Debug)]
pub(super) struct AttachedInterface {
    pub(super) features: Features,
    pub(super) pairs: u16,
    /// Its counters that the supervisor knows.
    pub(super) reported: DriverCounters,
}

/// Returns the counters of a port's interface.
pub(super) fn counters(id: PortId, workers: &Workers) -> Option<DriverCounters> {
    workers.first(move |w| w.switch.port_mut(id)?.interface_counters())
}
