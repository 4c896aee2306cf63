//! Status, counters and metrics: conversion of the reports of switch and supervisor to the API's
//! documents.

use std::collections::{BTreeMap, HashMap};

use api::v1::{
    AdminState, ClientStatus, DriverStatus, FdbDocument, FdbEntry, FdbFilter, FrontEndStatus,
    GuestStateStatus, GuestStates, Iommu, MirrorSpec, MirrorStats, Notifications, PortKind,
    PortSecurityStatus, PortSpec, PortState as ApiState, PortStats, PortStatus, PortsDocument,
    Problem, ProcessState, ProcessStatus, ProcessUsage, QueueFault, RingFormat, StatsDocument,
    StatusDocument, SwitchStatus, Traffic, TranslationStatus, VcpuSearch, VcpuSource, Work,
};
use ipc::driving::DriverState;
use ipc::figures::TranslationFigures;
use ipc::supervision::{self, FoundVcpus, ProcessInfo, WatchedGuests};
use ipc::switching::{Clients, PortPhase, PortState, SwitchFigures};
use ipc::user_reports::UserFigures;
use port::counters::{self, COPY_LOSSES, MirrorCounts, PortCounts};
use port::{DropReason, PortId};

use super::{connections, egress, prefilters, shared_sockets, user};
use crate::engine::links::switch::Figures;
use crate::engine::{Engine, SharedEngine, unavailable};
use crate::metrics::{Facts, PortFacts};
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
    (33, "F_ACCESS_PLATFORM"),
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

pub(in crate::engine) fn api_state(phase: PortPhase) -> ApiState {
    match phase {
        PortPhase::Waiting => ApiState::Waiting,
        PortPhase::Dialing => ApiState::Dialing,
        PortPhase::Connected => ApiState::Connected,
        PortPhase::Up => ApiState::Up,
        PortPhase::Faulted => ApiState::Faulted,
    }
}

/// Returns the status of one port from its configuration and the reports about it.
fn port_status(
    spec: &PortSpec,
    state: Option<&PortState>,
    driver: Option<&DriverState>,
) -> PortStatus {
    let mut status = guest_status(spec, state);
    status.driver_status = driver.map(driver_status);
    status
}

fn driver_status(state: &DriverState) -> DriverStatus {
    let counters = &state.counters;
    DriverStatus {
        back_end: state.back_end.map(|b| b.as_str().to_owned()),
        mac: state.mac.map(|mac| wire::MacAddr(mac).to_string()),
        in_switch: state.in_switch,
        pid: state.pid,
        restarts: state.restarts.into(),
        rejected_by_interface: counters.rejected_by_interface,
        oversized_frames: counters.oversized_frames,
        dropped_by_kernel: counters.dropped_by_kernel,
        received_frames: counters.received.frames,
        receive_calls: counters.received.calls,
        sent_frames: counters.sent.frames,
        send_calls: counters.sent.calls,
        user: state.user.as_ref().map(user::status_of),
        cpu_weight_error: state.cpu_weight_error.clone(),
        reason: state.reason.clone(),
    }
}

/// Returns the status of a port as the switch reports it.
fn guest_status(spec: &PortSpec, state: Option<&PortState>) -> PortStatus {
    let Some(state) = state else {
        return PortStatus::new(spec, ApiState::Starting);
    };
    let running = |q: &&ipc::switching::QueueState| q.enabled && q.fault.is_none();
    let from_guest = state
        .queues
        .iter()
        .filter(running)
        .filter(|q| q.index % 2 == 1);
    let mut status = PortStatus::new(spec, api_state(state.phase));
    status.reason.clone_from(&state.reason);
    status.queue_pairs = from_guest.count() as u16;
    if !state.queues.is_empty() {
        status.ring = Some(ring_format(state));
    }
    status.features = feature_names(state.features);
    status.notifications = notifications(state);
    let misaligned = state.queues.iter().map(|queue| queue.counts.misaligned);
    status.misaligned_frames = misaligned.sum();
    status.memory_bytes = state.memory;
    let other = |offered: &Iommu| status.iommu.is_some_and(|next| next != *offered);
    status.iommu_of_connection = state.iommu.filter(other);
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
    status.client = state.client.as_ref().map(|client| ClientStatus {
        pid: client.pid,
        program: Some(client.program.clone()).filter(|name| !name.is_empty()),
    });
    status.translation = state.translation.as_ref().map(translation);
    status
}

fn translation(of: &TranslationFigures) -> TranslationStatus {
    TranslationStatus {
        entries: of.entries,
        updates: of.updates,
        invalidations: of.invalidations,
        evictions: of.evictions,
        refused: of.refusals,
        misses: of.misses,
        denied: of.denied,
        unanswered: of.unanswered,
        mean_wait_us: of.waits.total_ns / of.waits.count().max(1) / 1000,
        p99_wait_us: of.waits.p99_us(),
    }
}

fn ring_format(state: &PortState) -> RingFormat {
    match state.config.clients {
        Clients::Netmap { .. } => RingFormat::Netmap,
        Clients::Memif { .. } => RingFormat::Memif,
        Clients::VhostUser if state.features & (1 << RING_PACKED) != 0 => RingFormat::Packed,
        Clients::VhostUser => RingFormat::Split,
    }
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
            wake_ups: used.wake_ups,
            resident_bytes: used.resident_bytes,
            anonymous_bytes: used.anonymous_bytes,
            mapped_bytes: used.mapped_bytes,
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
    ports: impl Iterator<Item = (String, (ApiState, AdminState), PortCounts)>,
    per_second: Option<u64>,
) -> StatsDocument {
    let mut document = StatsDocument::default();
    for (name, (state, admin_state), counts) in ports {
        let drops = drops(&counts);
        for (reason, n) in &drops {
            *document.drops.entry(reason.clone()).or_default() += n;
        }
        document.ports.push(PortStats {
            name,
            state,
            admin_state,
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

/// Returns the status of vCPU states for the switch as a whole.
fn guest_state_status(watched: &WatchedGuests, vcpus: &FoundVcpus) -> GuestStateStatus {
    GuestStateStatus {
        by: GuestStates::from_word(&watched.by).unwrap_or_default(),
        reason: watched.reason.clone(),
        no_halts: watched.no_halts.clone(),
        missing: vcpus.missing.clone(),
    }
}

/// Returns the number of a port's vCPU threads, and the evidence for them.
fn vcpus_of(reports: &PortReports, spec: &PortSpec, port: Option<PortId>) -> (u32, VcpuSearch) {
    let mut all = reports.vcpus.ports.iter();
    let Some((_, vcpus)) = all.find(|(id, _)| Some(*id) == port) else {
        let is_off =
            spec.kind == PortKind::VhostUser && reports.watched.by == GuestStates::Off.as_str();
        let search = VcpuSearch {
            by: VcpuSource::Unknown,
            reason: is_off.then(|| "vCPU states are off".to_owned()),
        };
        return (0, search);
    };
    let search = VcpuSearch {
        by: VcpuSource::from_word(&vcpus.by).unwrap_or_default(),
        reason: vcpus.reason.clone(),
    };
    (vcpus.found, search)
}

/// Adds up the notifications of a port's queues.
fn notifications(state: &PortState) -> Notifications {
    let mut sum = Notifications::default();
    for queue in &state.queues {
        let counts = &queue.counts;
        let (sent, deferred) = match queue.index % 2 {
            0 => (&mut sum.to_guest, &mut sum.deferred),
            _ => (&mut sum.kicks, &mut sum.suppressed_kicks),
        };
        *sent += counts.notifications;
        *deferred += counts.deferred;
        sum.slept_through += counts.slept_through;
        sum.coalesced_kicks += counts.coalesced;
    }
    sum
}

/// Reports of the peers about ports.
struct PortReports {
    states: Vec<PortState>,
    drivers: Vec<DriverState>,
    watched: WatchedGuests,
    vcpus: FoundVcpus,
}

/// Requests what the status of ports needs beside the switch's report. Without drivers the
/// supervisor is not asked for them.
async fn port_reports(
    engine: &SharedEngine<'_>,
    states: Vec<PortState>,
) -> Result<PortReports, Problem> {
    let needs_one = |port: &PortSpec| port.kind.has_driver();
    let drivers = engine.with(|e| {
        let ports = &e.store.saved.desired.ports;
        let has_drivers = ports.iter().any(needs_one);
        has_drivers.then(|| e.links.supervisor.driver_states())
    });
    let drivers = match drivers {
        Some(drivers) => drivers.await.map_err(unavailable)?,
        None => Vec::new(),
    };
    let watched = engine.with(|e| e.links.supervisor.watched_guests());
    let watched = watched.await.map_err(unavailable)?;
    let vcpus = engine.with(|e| e.links.supervisor.found_vcpus());
    Ok(PortReports {
        states,
        drivers,
        watched,
        vcpus: vcpus.await.map_err(unavailable)?,
    })
}

async fn port_states(engine: &SharedEngine<'_>) -> Result<(Vec<PortState>, Figures), Problem> {
    let states = engine.with(|e| e.links.switch.port_states());
    states.await.map_err(unavailable)
}

/// Returns the states that the switch has reported by the names of their ports.
fn by_name(states: &[PortState]) -> HashMap<&str, &PortState> {
    let named = states
        .iter()
        .map(|state| (state.config.name.as_str(), state));
    named.collect()
}

/// Returns the states that the switch has reported by the numbers of their ports.
fn by_id(states: &[PortState]) -> HashMap<PortId, &PortState> {
    let numbered = states.iter().map(|state| (state.config.id, state));
    numbered.collect()
}

/// Returns the states of ports by their names.
pub(super) async fn states_by_name(
    engine: &SharedEngine<'_>,
) -> Result<BTreeMap<String, (AdminState, ApiState)>, Problem> {
    let (states, _) = port_states(engine).await?;
    Ok(engine.with(|e| {
        let states = by_name(&states);
        let ports = e.store.saved.desired.ports.iter();
        let ports = ports.map(|spec| {
            let state = states.get(spec.name.as_str()).copied();
            (spec.name.clone(), (spec.admin_state, state_of(state)))
        });
        ports.collect()
    }))
}

/// Returns the status of processes, switch, segments and ports.
///
/// # Errors
/// A peer is gone or does not reply; the same for all functions here.
pub(in crate::engine) async fn status(
    engine: &SharedEngine<'_>,
) -> Result<StatusDocument, Problem> {
    let (states, figures) = port_states(engine).await?;
    let (status, _) = status_of(engine, states, &figures.switch).await?;
    let shared = engine.with(|e| e.links.supervisor.shared_sockets());
    let shared = shared.await.map_err(unavailable)?;
    let mut warnings = engine.with(|e| shared_sockets::warnings(&e.store.saved.desired, &shared));
    warnings.extend(user::warnings(&status.ports));
    Ok(StatusDocument { warnings, ..status })
}

/// Returns the status, and the port states that the switch has reported for it already.
async fn status_of(
    engine: &SharedEngine<'_>,
    states: Vec<PortState>,
    figures: &SwitchFigures,
) -> Result<(StatusDocument, Vec<PortState>), Problem> {
    let processes = engine.with(|e| e.links.supervisor.processes());
    let processes = processes.await.map_err(unavailable)?;
    let usage = engine.with(|e| e.links.supervisor.process_usage());
    let usage = usage.await.map_err(unavailable)?.into_iter();
    let usage: BTreeMap<u32, _> = usage.map(|used| (used.pid, used)).collect();
    let process = |info: ProcessInfo| process_status(&info, usage.get(&info.pid));
    let reports = port_reports(engine, states).await?;
    let uptime = processes.first().map_or(0, |p| p.uptime_ms / 1000);
    let status = engine.with(|e| {
        let ports = e.port_statuses(&reports, |_| true);
        let desired = &e.store.saved.desired;
        StatusDocument {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: desired.switch.name.clone(),
            uptime_seconds: uptime,
            processes: processes.into_iter().map(process).collect(),
            switch: SwitchStatus {
                connected: true,
                epoch: e.forwarding.program.epoch(),
                flows: figures.flows,
                upcalls: e.forwarding.upcall_count,
                upcalls_dropped: e.upcall_drops(),
                workers: figures.workers,
                poll: desired.switch.poll,
                guest_state: guest_state_status(&reports.watched, &reports.vcpus),
            },
            segments: desired::segments(desired),
            ports,
            warnings: Vec::new(),
        }
    });
    Ok((status, reports.states))
}

/// Returns the status of all ports.
pub(in crate::engine) async fn ports(engine: &SharedEngine<'_>) -> Result<PortsDocument, Problem> {
    let (states, _) = port_states(engine).await?;
    let reports = port_reports(engine, states).await?;
    let ports = engine.with(|e| e.port_statuses(&reports, |_| true));
    Ok(PortsDocument { ports })
}

/// Returns the status of one port.
pub(in crate::engine) async fn port_status_now(
    engine: &SharedEngine<'_>,
    name: &str,
) -> Result<PortStatus, Problem> {
    let (states, _) = port_states(engine).await?;
    let reports = port_reports(engine, states).await?;
    let found = engine.with(|e| e.port_statuses(&reports, |spec| spec.name == name));
    let found = found.into_iter().next();
    found.ok_or_else(|| Problem::no_such("port", name))
}

/// Returns traffic and drops.
pub(in crate::engine) async fn traffic_stats(
    engine: &SharedEngine<'_>,
) -> Result<StatsDocument, Problem> {
    let (states, _) = port_states(engine).await?;
    let users = engine.with(|e| {
        let mut ports = e.store.saved.desired.ports.iter();
        let has_users = ports.any(|port| port.kind == PortKind::User);
        has_users.then(|| e.links.supervisor.driver_states())
    });
    let users = match users {
        Some(drivers) => drivers.await.map_err(unavailable)?,
        None => Vec::new(),
    };
    let users = users.into_iter();
    let users = users.filter_map(|driver| Some((driver.name, driver.user?)));
    let users = users.collect();
    Ok(engine.with(|e| e.stats_document(&states, &users)))
}

/// Returns the data of the metrics page.
pub(in crate::engine) async fn facts(engine: &SharedEngine<'_>) -> Result<Facts, Problem> {
    let (states, figures) = port_states(engine).await?;
    let (status, states) = status_of(engine, states, &figures.switch).await?;
    let egress = egress::documents(engine).await?;
    Ok(engine.with(|e| {
        let connections = connections::table(e);
        let states = by_id(&states);
        let ports = status.ports.iter().map(|port| {
            let id = e.store.saved.numbers.ports.get(&port.name).copied();
            let mut counts = id
                .map(|id| prefilters::counts_of(e, id))
                .unwrap_or_default();
            let driver = port.driver_status.as_ref();
            if let Some(user) = driver.and_then(|driver| driver.user.as_ref()) {
                user::add_refused(&mut counts, user);
            }
            PortFacts {
                counts,
                state: id.and_then(|id| states.get(&id).copied()).cloned(),
            }
        });
        Facts {
            egress,
            connections,
            ports: ports.collect(),
            status,
            figures: figures.switch,
            workers: figures.workers,
            ticks_per_second: e.counters.ticks_per_second(),
            mirrors: e.mirror_stats(),
            rules: e.counted(),
            stations: e.forwarding.fdb.list(e.now()).len() as u64,
        }
    }))
}

impl Engine {
    /// Returns the status of all desired ports, in the operator's order.
    fn port_statuses(
        &mut self,
        reports: &PortReports,
        is_wanted: impl Fn(&PortSpec) -> bool,
    ) -> Vec<PortStatus> {
        let connections = connections::ports::connections(self);
        let states = by_name(&reports.states);
        let desired = self.store.saved.desired.ports.iter();
        desired
            .filter(|spec| is_wanted(spec))
            .map(|spec| {
                let state = states.get(spec.name.as_str()).copied();
                let driver = reports.drivers.iter().find(|d| d.name == spec.name);
                let id = self.store.saved.numbers.ports.get(&spec.name).copied();
                let (vcpus, vcpu_search) = vcpus_of(reports, spec, id);
                PortStatus {
                    vcpus,
                    vcpu_search,
                    work: state.map(|s| self.work_of(s)).unwrap_or_default(),
                    port_security: self.port_security_status(spec, id),
                    egress: egress::status(self, spec),
                    connections: id.and_then(|id| connections.get(&id)).copied(),
                    prefilter: prefilters::status(self, id, driver),
                    ..port_status(spec, state, driver)
                }
            })
            .collect()
    }

    /// Returns a port's port security and its bindings.
    fn port_security_status(&self, spec: &PortSpec, id: Option<PortId>) -> PortSecurityStatus {
        let bound = id.and_then(|id| self.forwarding.bound.get(&id)).copied();
        let bound = bound.unwrap_or_default();
        let mac = bound.mac.map(|mac| wire::MacAddr(mac).to_string());
        let v4 = bound.v4.map(|v4| v4.to_string());
        let v6 = [bound.link_local, bound.v6];
        let v6 = v6.into_iter().flatten().map(|v6| v6.to_string());
        PortSecurityStatus {
            bound: mac.into_iter().chain(v4).chain(v6).collect(),
            ..desired::port_security_status(spec)
        }
    }

    fn upcall_drops(&self) -> u64 {
        let full = DropReason::UpcallFull;
        let ports = self.ports.configs.keys();
        ports.map(|&id| self.counters.read(id).dropped(full)).sum()
    }

    fn stats_document(
        &self,
        states: &[PortState],
        users: &BTreeMap<String, UserFigures>,
    ) -> StatsDocument {
        let states = by_id(states);
        let desired = self.store.saved.desired.ports.iter();
        let ports = desired.map(|spec| {
            let id = self.store.saved.numbers.ports.get(&spec.name).copied();
            let state = id.and_then(|id| states.get(&id).copied());
            let mut counts = id
                .map(|id| prefilters::counts_of(self, id))
                .unwrap_or_default();
            if let Some(figures) = users.get(&spec.name) {
                user::add_refused(&mut counts, &user::status_of(figures));
            }
            let state = (state_of(state), spec.admin_state);
            (spec.name.clone(), state, counts)
        });
        StatsDocument {
            mirrors: self.mirror_stats(),
            ..stats(ports, self.counters.ticks_per_second())
        }
    }

    /// Returns the counters of mirrors, in the operator's order.
    pub(in crate::engine) fn mirror_stats(&self) -> Vec<MirrorStats> {
        let one = |spec: &MirrorSpec| {
            let number = self.store.saved.numbers.mirrors.get(&spec.name);
            let counts = number.map(|number| self.counters.read_mirror(*number));
            let MirrorCounts { copied, lost } = counts.unwrap_or_default();
            let lost = COPY_LOSSES.iter().zip(lost);
            let lost = lost.filter(|(_, count)| *count > 0);
            MirrorStats {
                name: spec.name.clone(),
                copied: traffic(copied),
                lost: lost
                    .map(|(reason, count)| (reason.name().to_owned(), count))
                    .collect(),
            }
        };
        self.store.saved.desired.mirrors.iter().map(one).collect()
    }

    /// Returns the CPU work that a port of the switch has caused so far.
    fn work_of(&self, state: &PortState) -> Work {
        let counts = self.counters.read(state.config.id);
        work(&counts, self.counters.ticks_per_second())
    }

    /// Returns the FDB; 404 where there is no such port or segment.
    pub(in crate::engine) fn fdb_document(
        &self,
        filter: &FdbFilter,
    ) -> Result<FdbDocument, Problem> {
        filter.check(&self.store.saved.desired)?;
        let stations = self.forwarding.fdb.list(self.now()).into_iter();
        let entries = stations.map(|s| FdbEntry {
            segment: self.store.segment_name(s.segment).to_owned(),
            mac: s.mac.to_string(),
            port: self.ports.name(s.port).to_owned(),
            age_seconds: s.age.as_secs(),
            is_static: s.pinned,
        });
        Ok(FdbDocument {
            entries: entries.filter(|e| filter.accepts(e)).collect(),
        })
    }
}
