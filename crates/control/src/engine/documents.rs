//! Conversion of reports of the switch and the supervisor to the API's documents.

use std::collections::BTreeMap;

use api::v1::{
    DriverStatus, FdbDocument, FdbEntry, FdbFilter, FrontEndStatus, PortSpec,
    PortState as ApiState, PortStats, PortStatus, PortsDocument, Problem, ProcessState,
    ProcessStatus, ProcessUsage, QueueFault, RingFormat, StatsDocument, StatusDocument,
    SwitchStatus, Traffic, Work,
};
use channel::driving::DriverState;
use channel::supervision::{self, ProcessInfo};
use channel::switching::{PortPhase, PortState, SwitchFigures};
use policy::SegmentId;
use port::DropReason;
use port::counters::{self, PortCounts};

use super::{Engine, guests, unavailable};
use config::desired;

/// Nanoseconds and microseconds in a second.
const NS: u64 = 1_000_000_000;
const US: u64 = 1_000_000;

/// `VIRTIO_F_RING_PACKED` (virtio 1.3, 6).
const RING_PACKED: u32 = 34;

/// Names of the feature bits that Lasthop offers, as in virtio 1.3 without `VIRTIO_`.
const FEATURES: &[(u32, &str)] = &[
    (0, "NET_F_CSUM"),
    (1, "NET_F_GUEST_CSUM"),
    (3, "NET_F_MTU"),
    (5, "NET_F_MAC"),
    (7, "NET_F_GUEST_TSO4"),
    (8, "NET_F_GUEST_TSO6"),
    (9, "NET_F_GUEST_ECN"),
    (11, "NET_F_HOST_TSO4"),
    (12, "NET_F_HOST_TSO6"),
    (13, "NET_F_HOST_ECN"),
    (15, "NET_F_MRG_RXBUF"),
    (16, "NET_F_STATUS"),
    (22, "NET_F_MQ"),
    (27, "F_ANY_LAYOUT"),
    (28, "F_INDIRECT_DESC"),
    (29, "F_EVENT_IDX"),
    (32, "F_VERSION_1"),
    (RING_PACKED, "F_RING_PACKED"),
    (35, "F_IN_ORDER"),
    (54, "NET_F_GUEST_USO4"),
    (55, "NET_F_GUEST_USO6"),
    (56, "NET_F_HOST_USO"),
];

fn feature_names(bits: u64) -> Vec<String> {
    let set = |&&(bit, _): &&(u32, &str)| bits & (1 << bit) != 0;
    FEATURES
        .iter()
        .filter(set)
        .map(|&(_, name)| name.to_owned())
        .collect()
}

pub(super) fn api_state(phase: PortPhase) -> ApiState {
    match phase {
        PortPhase::Waiting => ApiState::Waiting,
        PortPhase::Dialing => ApiState::Dialing,
        PortPhase::Connected => ApiState::Connected,
        PortPhase::Up => ApiState::Up,
        PortPhase::Faulted => ApiState::Faulted,
    }
}

/// Returns the status of one port from its configuration and the reports about it.
pub(super) fn port_status(
    spec: &PortSpec,
    state: Option<&PortState>,
    driver: Option<&DriverState>,
) -> PortStatus {
    let mut status = guest_status(spec, state);
    status.driver_process = driver.map(driver_status);
    status
}

fn driver_status(state: &DriverState) -> DriverStatus {
    DriverStatus {
        back_end: state.back_end.map(|b| b.as_str().to_owned()),
        mac: state.mac.map(|mac| wire::MacAddr(mac).to_string()),
        pid: state.pid,
        restarts: state.restarts.into(),
        rejected_by_interface: state.refused.rejected_by_interface,
        oversized_frames: state.refused.oversized_frames,
        reason: state.reason.clone(),
    }
}

/// Returns the status of a port as the switch reports it.
fn guest_status(spec: &PortSpec, state: Option<&PortState>) -> PortStatus {
    let Some(state) = state else {
        return PortStatus::new(spec, ApiState::Starting);
    };
    let running = |q: &&channel::switching::QueueState| q.enabled && q.fault.is_none();
    let from_guest = state
        .queues
        .iter()
        .filter(running)
        .filter(|q| q.index % 2 == 1);
    let mut status = PortStatus::new(spec, api_state(state.phase));
    status.reason.clone_from(&state.reason);
    status.queue_pairs = from_guest.count() as u16;
    if !state.queues.is_empty() {
        let packed = state.features & (1 << RING_PACKED) != 0;
        status.ring = Some(if packed {
            RingFormat::Packed
        } else {
            RingFormat::Split
        });
    }
    status.features = feature_names(state.features);
    status.memory_bytes = state.memory;
    status.queue_faults = state
        .queues
        .iter()
        .filter_map(|q| {
            let reason = q.fault.clone()?;
            Some(QueueFault {
                queue: q.index,
                reason,
            })
        })
        .collect();
    status.front_ends = FrontEndStatus {
        connections: state.connections,
        rejected_connections: state.front_ends.rejected_connections,
        last_rejected_ms_ago: state.front_ends.last_rejected_ms_ago,
        last_rejected_uid: state.front_ends.last_rejected_uid,
        refused_messages: state.front_ends.refused_messages,
        pauses: state.front_ends.pauses,
        pause_ms: state.front_ends.pause_ms,
        suppressed_log_lines: state.front_ends.suppressed_log_lines,
    };
    status
}

/// Returns the status of one process.
fn process_status(info: &ProcessInfo, used: Option<&supervision::ProcessUsage>) -> ProcessStatus {
    ProcessStatus {
        name: info.name.clone(),
        state: if info.pid == 0 {
            ProcessState::Restarting
        } else {
            ProcessState::Running
        },
        pid: (info.pid != 0).then_some(info.pid),
        uptime_seconds: info.uptime_ms / 1000,
        restarts: u64::from(info.restarts),
        usage: used.map(|used| ProcessUsage {
            cpu_ms: used.cpu_ms,
            resident_bytes: used.resident_bytes,
            anonymous_bytes: used.anonymous_bytes,
        }),
    }
}

fn traffic(t: counters::Traffic) -> Traffic {
    Traffic {
        packets: t.packets,
        bytes: t.bytes,
    }
}

fn drops(counts: &PortCounts) -> BTreeMap<String, u64> {
    let named = |&reason: &DropReason| (reason.name().to_owned(), counts.dropped(reason));
    port::losses().map(named).filter(|(_, n)| *n > 0).collect()
}

/// Converts a port's CPU ticks; `per_second` is their frequency, if that is known.
fn work(counts: &PortCounts, per_second: Option<u64>) -> Work {
    let ticks = counts.ticks;
    let in_seconds = |ticks: u64, unit: u64| {
        let scaled = u128::from(ticks) * u128::from(unit);
        per_second.map_or(0, |rate| (scaled / u128::from(rate)) as u64)
    };
    let ns_per_frame = |ticks: u64, frames: u64| in_seconds(ticks, NS) / frames.max(1);
    Work {
        cycles_switching: ticks.switching,
        cycles_copying: ticks.copying,
        switching_ns_per_frame: ns_per_frame(ticks.switching, counts.from_guest.packets),
        copying_ns_per_frame: ns_per_frame(ticks.copying, counts.to_guest.packets),
        cpu_us: in_seconds(ticks.switching + ticks.copying, US),
        skipped_batches: counts.masked,
    }
}

/// Returns the counters of all ports, and the drops in total.
fn stats(
    ports: impl Iterator<Item = (String, ApiState, PortCounts)>,
    per_second: Option<u64>,
) -> StatsDocument {
    let mut document = StatsDocument::default();
    for (name, state, counts) in ports {
        let drops = drops(&counts);
        for (reason, n) in &drops {
            *document.drops.entry(reason.clone()).or_default() += n;
        }
        document.ports.push(PortStats {
            name,
            state,
            from_guest: traffic(counts.from_guest),
            to_guest: traffic(counts.to_guest),
            work: work(&counts, per_second),
            neighbour_replies: counts.dropped(DropReason::NeighbourReply),
            drops,
        });
    }
    document
}

/// Returns the state of a port for statistics.
pub(super) fn state_of(state: Option<&PortState>) -> ApiState {
    state.map_or(ApiState::Starting, |s| api_state(s.phase))
}

impl Engine {
    pub(super) fn status(&mut self) -> Result<StatusDocument, Problem> {
        let (states, figures) = self.switch.port_states().map_err(unavailable)?;
        self.status_of(&states, &figures.switch)
    }

    /// Returns the status from port states that the switch has reported already.
    pub(super) fn status_of(
        &mut self,
        states: &[PortState],
        figures: &SwitchFigures,
    ) -> Result<StatusDocument, Problem> {
        let processes = self.supervisor.processes().map_err(unavailable)?;
        let usage = self.supervisor.process_usage().map_err(unavailable)?;
        let usage: BTreeMap<u32, _> = usage.into_iter().map(|used| (used.pid, used)).collect();
        let process = |info: ProcessInfo| process_status(&info, usage.get(&info.pid));
        let drivers = self.driver_states()?;
        let watched = self.supervisor.watched_guests().map_err(unavailable)?;
        let uptime = processes.first().map_or(0, |p| p.uptime_ms / 1000);
        let desired = &self.saved.desired;
        Ok(StatusDocument {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: desired.switch.name.clone(),
            uptime_seconds: uptime,
            processes: processes.into_iter().map(process).collect(),
            switch: SwitchStatus {
                connected: true,
                epoch: self.program.epoch(),
                flows: figures.flows,
                upcalls: self.upcall_count,
                upcalls_dropped: self.upcall_drops(),
                workers: figures.workers,
                helpers: figures.helpers,
                helper_frames: figures.helper_frames,
                poll: desired.switch.poll,
                guest_state: guests::status(&watched),
            },
            segments: desired::segments(desired),
            ports: self.statuses(states, &drivers, &watched),
        })
    }

    fn upcall_drops(&self) -> u64 {
        let full = port::DropReason::UpcallFull;
        let ports = self.ports.keys();
        ports.map(|&id| self.counters.read(id).dropped(full)).sum()
    }

    pub(super) fn port_list(&mut self) -> Result<PortsDocument, Problem> {
        let (states, _) = self.switch.port_states().map_err(unavailable)?;
        let drivers = self.driver_states()?;
        let watched = self.supervisor.watched_guests().map_err(unavailable)?;
        let ports = self.statuses(&states, &drivers, &watched);
        Ok(PortsDocument { ports })
    }

    pub(super) fn stats(&mut self) -> Result<StatsDocument, Problem> {
        let (states, _) = self.switch.port_states().map_err(unavailable)?;
        let desired = self.saved.desired.ports.iter();
        let ports = desired.map(|spec| {
            let id = self.saved.numbers.ports.get(&spec.name).copied();
            let state = states.iter().find(|s| Some(s.config.id) == id);
            let counts = id.map(|id| self.counters.read(id)).unwrap_or_default();
            (spec.name.clone(), state_of(state), counts)
        });
        Ok(StatsDocument {
            mirrors: self.mirror_stats(),
            ..stats(ports, self.counters.ticks_per_second())
        })
    }

    /// Returns the CPU work that a port of the switch has caused so far.
    pub(super) fn work_of(&self, state: &PortState) -> Work {
        let counts = self.counters.read(state.config.id);
        work(&counts, self.counters.ticks_per_second())
    }

    /// Returns the FDB; 404 where there is no such port or segment.
    pub(super) fn fdb_document(&self, filter: &FdbFilter) -> Result<FdbDocument, Problem> {
        filter.check(&self.saved.desired)?;
        let stations = self.fdb.list(self.now()).into_iter().map(|s| FdbEntry {
            segment: self.segment_name(s.segment).to_owned(),
            mac: s.mac.to_string(),
            port: self.port_name(s.port).to_owned(),
            age_seconds: s.age.as_secs(),
            is_static: s.pinned,
        });
        Ok(FdbDocument {
            entries: stations.filter(|e| filter.accepts(e)).collect(),
        })
    }

    pub(super) fn segment_name(&self, id: SegmentId) -> &str {
        let mut names = self.saved.numbers.segments.iter();
        names
            .find(|(_, i)| **i == id)
            .map_or("?", |(name, _)| name.as_str())
    }
}
