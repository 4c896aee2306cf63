//! The status of a port's side of its front ends.

use std::collections::BTreeMap;
use std::time::Instant;

use ipc::figures::{QueueCounts, TranslationFigures};
use ipc::peer::Peer;
use ipc::switching::{ClientProcess, Clients, FrontEnds, PortPhase, PortState, QueueState, Role};

use virtio::vhost_user::Info;

use super::{Attachment, missing_memory};

impl Attachment {
    /// Returns the phase of the port.
    #[must_use]
    pub fn phase(&self) -> PortPhase {
        let Some(open) = &self.open else {
            if self.has_interface() {
                return PortPhase::Up;
            }
            return match self.context.config.role {
                Role::Server => PortPhase::Waiting,
                Role::Client => PortPhase::Dialing,
            };
        };
        let queues = open.client.queue_summary();
        if queues.any_fault {
            PortPhase::Faulted
        } else if queues.any_up {
            PortPhase::Up
        } else {
            PortPhase::Connected
        }
    }

    /// Returns the phase, if it has changed since the last call.
    pub fn phase_change(&mut self) -> Option<PortPhase> {
        let phase = self.phase();
        (std::mem::replace(&mut self.phase, phase) != phase).then_some(phase)
    }

    /// Returns the whole state for `status`.
    #[must_use]
    pub fn state(&self, counts: &BTreeMap<u16, QueueCounts>) -> PortState {
        let info = self.open.as_ref().map(|open| open.client.info());
        let queues = info.iter().flat_map(|i| &i.queues);
        let queues = queues.filter(|q| q.running || q.fault.is_some());
        let of_guest = queues.map(|q| QueueState {
            index: q.index,
            size: q.size,
            enabled: q.enabled,
            fault: q.fault.clone(),
            counts: counts.get(&q.index).cloned().unwrap_or_default(),
        });
        let of_interface = self
            .interface
            .iter()
            .flat_map(|interface| 0..2 * interface.pairs);
        let of_interface = of_interface.map(|index| QueueState {
            index,
            size: 0,
            enabled: true,
            fault: None,
            counts: counts.get(&index).cloned().unwrap_or_default(),
        });
        let features = info.as_ref().and_then(|info| info.features);
        let features = features.or(self.interface.as_ref().map(|interface| interface.features));
        PortState {
            config: self.context.config.clone(),
            phase: self.phase(),
            reason: self.reason(),
            features: features.map_or(0, |features| features.bits()),
            protocol_features: info
                .as_ref()
                .and_then(|i| i.protocol)
                .map_or(0, |f| f.bits()),
            memory: info.as_ref().map_or(0, |i| i.memory_bytes),
            queues: of_guest.chain(of_interface).collect(),
            connections: self.context.connections,
            client: self.client_process(),
            iommu: self.open.as_ref().map(|open| open.client.iommu()),
            translation: info.as_ref().and_then(|info| self.translation(info)),
            front_ends: FrontEnds {
                rejected_connections: self.admission.rejected.count,
                last_rejected_ms_ago: self.admission.rejected.last_ms_ago(),
                last_rejected_uid: self.admission.peer_check.last_rejected,
                refused_messages: self.refused_messages + info.map_or(0, |i| i.refused_messages),
                pauses: self.admission.pauses.count,
                pause_ms: self.admission.pauses.remaining(Instant::now()).as_millis() as u64,
                suppressed_log_lines: self.context.event_limits.suppressed_log_lines(),
            },
        }
    }

    fn translation(&self, info: &Info) -> Option<TranslationFigures> {
        let iotlb = info.iotlb?;
        Some(TranslationFigures {
            entries: iotlb.counts.entries,
            updates: iotlb.counts.updates,
            invalidations: iotlb.counts.invalidations,
            evictions: iotlb.counts.evictions,
            refusals: iotlb.counts.refusals,
            misses: iotlb.misses,
            denied: iotlb.denied,
            unanswered: iotlb.unanswered,
            waits: self.context.invalidate_waits,
        })
    }

    /// Returns the connected process, on a port for processes.
    fn client_process(&self) -> Option<ClientProcess> {
        let open = self.open.as_ref()?;
        if self.context.config.clients == Clients::VhostUser {
            return None;
        }
        let peer = Peer::of(&open.client).ok()?;
        let pid = peer.process.map(|pid| pid.as_raw_nonzero().get());
        Some(ClientProcess {
            pid: pid.and_then(|pid| u32::try_from(pid).ok()),
            program: open.client.program().unwrap_or_default(),
        })
    }

    /// Returns the present fault, or the reason of the last connection's end, or that of a queue's
    /// that was stopped in it, or a report of rejected connections.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let open = self.open.as_ref();
        let serves = open.is_some_and(|open| open.client.queue_summary().any_running);
        let now = self.fault().or_else(|| self.previous_reason.clone());
        let now = now.or_else(|| self.stopped.reason(serves, Instant::now()));
        now.or_else(|| self.admission.rejected.reason())
    }

    /// Returns the fault of the open connection, or of the last one.
    fn fault(&self) -> Option<String> {
        let lacks_memory = self.open.as_ref().is_some_and(|open| {
            // Without a reason that memory would not change.
            let starts = open.client.info().no_start.is_none();
            starts && open.missing_memory.is_overdue(Instant::now())
        });
        if lacks_memory {
            return Some(missing_memory::REASON.to_owned());
        }
        self.persistent_fault()
    }

    /// Returns the same without faults that end with the connection.
    pub(super) fn persistent_fault(&self) -> Option<String> {
        let info = self.open.as_ref().map(|open| open.client.info());
        let stopped = info.iter().flat_map(|info| &info.queues).find_map(|q| {
            let fault = q.fault.as_ref()?;
            Some(format!("queue {} stopped: {fault}", q.index))
        });
        let no_start = info.as_ref().and_then(|info| info.no_start.clone());
        stopped.or(no_start).or_else(|| self.reason.clone())
    }
}
