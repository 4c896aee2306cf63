//! Families of metrics.

use api::v1::{PortState, PortStatus, ProcessState, ProcessUsage};
use channel::figures::{QueueCounts, WAIT_BOUNDS_US, WorkerFigures};
use channel::switching::FrontEnds;
use port::DropReason;
use port::counters::COPY_LOSSES;

use super::text::{Kind, Page};
use super::{Facts, PortFacts, limits};

/// Writes all families.
pub(super) fn write(facts: &Facts, page: &mut Page) {
    host(facts, page);
    processes(facts, page);
    switch(facts, page);
    waits(facts, page);
    counters(facts, page);
    work(facts, page);
    workers(facts, page);
    mirrors(facts, page);
    rules(facts, page);
    ports(facts, page);
    limits::write(facts, page);
    queues(facts, page);
    drivers(facts, page);
}

/// Returns the counters of connections to a port, zero if the switch does not have the port.
fn front_ends(port: &PortFacts) -> FrontEnds {
    let state = port.state.as_ref();
    state.map(|state| state.front_ends).unwrap_or_default()
}

fn host(facts: &Facts, page: &mut Page) {
    let status = &facts.status;
    let help = "Always 1; the labels are the version of control and the name of the switch.";
    let labels = [("version", &*status.version), ("name", &*status.name)];
    page.family(Kind::Gauge, "lasthop_build_info", help)
        .sample(&labels, 1);
    let help = "Seconds since lasthop run started.";
    page.family(Kind::Gauge, "lasthop_uptime_seconds", help)
        .sample(&[], status.uptime_seconds);
    let help = "Ports in a segment, including trunk ports.";
    let mut family = page.family(Kind::Gauge, "lasthop_segment_ports", help);
    for segment in &status.segments {
        family.sample(&[("segment", &segment.name)], segment.ports.len());
    }
}

/// Maximum number of rules with metrics: more would make the page too long to collect every few
/// seconds.
const RULES: usize = 1000;

fn rules(facts: &Facts, page: &mut Page) {
    let busiest: Vec<_> = facts.rules.busiest(RULES).collect();
    let help = "Frames that a rule of an access list has decided, of the 1000 rules with the most \
                packets; up to five seconds old.";
    let mut family = page.family(Kind::Counter, "lasthop_acl_rule_packets", help);
    for (list, rule, count) in &busiest {
        family.sample(&[("list", list), ("rule", rule)], count.packets);
    }
    let help = "Bytes of the frames that a rule of an access list has decided.";
    let mut family = page.family(Kind::Counter, "lasthop_acl_rule_bytes", help);
    for (list, rule, count) in &busiest {
        family.sample(&[("list", list), ("rule", rule)], count.bytes);
    }
}

fn processes(facts: &Facts, page: &mut Page) {
    let all = &facts.status.processes;
    let mut family = page.family(
        Kind::Gauge,
        "lasthop_process_up",
        "1 if a process runs, else 0.",
    );
    for process in all {
        let up = process.state == ProcessState::Running;
        family.sample(&[("process", &process.name)], u8::from(up));
    }
    let help = "Restarts of a process.";
    let mut family = page.family(Kind::Counter, "lasthop_process_restarts", help);
    for process in all {
        family.sample(&[("process", &process.name)], process.restarts);
    }
    let help = "Seconds since the last start of a process.";
    let mut family = page.family(Kind::Gauge, "lasthop_process_uptime_seconds", help);
    for process in all {
        family.sample(&[("process", &process.name)], process.uptime_seconds);
    }
    process_usage(facts, page);
}

fn process_usage(facts: &Facts, page: &mut Page) {
    type Value = fn(&ProcessUsage) -> f64;
    let families: [(Kind, &str, &str, Value); 3] = [
        (
            Kind::Counter,
            "lasthop_process_cpu_seconds",
            "CPU time of all threads of a process, in user mode and in the kernel, since its last \
             start.",
            |used| used.cpu_ms as f64 / 1e3,
        ),
        (
            Kind::Gauge,
            "lasthop_process_resident_memory_bytes",
            "Resident memory of a process; for the switch including the touched parts of its \
             guests' memory.",
            |used| used.resident_bytes as f64,
        ),
        (
            Kind::Gauge,
            "lasthop_process_anonymous_memory_bytes",
            "Anonymous part of the resident memory: the process's own data.",
            |used| used.anonymous_bytes as f64,
        ),
    ];
    for (kind, name, help, value) in families {
        let mut family = page.family(kind, name, help);
        for process in &facts.status.processes {
            if let Some(used) = &process.usage {
                family.sample(&[("process", &process.name)], value(used));
            }
        }
    }
}

fn switch(facts: &Facts, page: &mut Page) {
    let (switch, figures) = (&facts.status.switch, &facts.figures);
    for (name, help, value) in [
        (
            "lasthop_switch_epoch",
            "The epoch of the policy that the switch executes.",
            switch.epoch,
        ),
        (
            "lasthop_switch_workers",
            "Workers: threads that forward frames.",
            switch.workers.into(),
        ),
        (
            "lasthop_switch_helpers",
            "Helpers: threads on idle cores that help workers.",
            switch.helpers.into(),
        ),
        (
            "lasthop_flow_cache_flows",
            "Flows in the caches of all workers.",
            figures.flows,
        ),
        (
            "lasthop_upcall_waiting_frames",
            "Frames that wait for the answer to their upcall.",
            figures.pending,
        ),
        (
            "lasthop_fdb_entries",
            "Learned MAC addresses in the forwarding database.",
            facts.stations,
        ),
    ] {
        page.family(Kind::Gauge, name, help).sample(&[], value);
    }
    for (name, help, value) in [
        (
            "lasthop_flow_cache_hits",
            "Frames that matched a cached flow, since the switch started.",
            figures.hits,
        ),
        (
            "lasthop_flow_cache_misses",
            "Frames that matched no cached flow, since the switch started.",
            figures.misses,
        ),
        (
            "lasthop_upcalls",
            "Upcalls sent by the switch, since the switch started.",
            figures.upcalls,
        ),
        (
            "lasthop_control_upcalls",
            "Upcalls answered by control, since control started.",
            switch.upcalls,
        ),
        (
            "lasthop_helper_frames",
            "Frames that helpers have processed, since the switch started.",
            figures.helper_frames,
        ),
    ] {
        page.family(Kind::Counter, name, help).sample(&[], value);
    }
}

fn waits(facts: &Facts, page: &mut Page) {
    let waits = &facts.figures.waits;
    let counts = WAIT_BOUNDS_US.iter().zip(waits.within);
    page.histogram(
        "lasthop_upcall_seconds",
        "Latency of upcalls, from the frame to control's answer, since the switch started.",
        counts.map(|(us, count)| (*us as f64 / 1e6, count)),
        (waits.longer, waits.total_ns as f64 / 1e9),
    );
}

/// Returns all ports with their counters.
fn each(facts: &Facts) -> impl Iterator<Item = (&PortStatus, &PortFacts)> {
    facts.status.ports.iter().zip(&facts.ports)
}

fn counters(facts: &Facts, page: &mut Page) {
    type Value = fn(&PortFacts) -> u64;
    let families: [(&str, &str, Value); 11] = [
        (
            "lasthop_port_received_frames",
            "Frames from the port's guest; a segmentation-offload frame counts once.",
            |p| p.counts.from_guest.packets,
        ),
        (
            "lasthop_port_received_bytes",
            "Bytes of the frames from the port's guest, without the virtio-net header.",
            |p| p.counts.from_guest.bytes,
        ),
        (
            "lasthop_port_sent_frames",
            "Frames to the port's guest; a segmentation-offload frame counts once.",
            |p| p.counts.to_guest.packets,
        ),
        (
            "lasthop_port_sent_bytes",
            "Bytes of the frames to the port's guest, without the virtio-net header.",
            |p| p.counts.to_guest.bytes,
        ),
        (
            "lasthop_port_skipped_batches",
            "Batches that skipped the port, because it had no receive buffer for a long time.",
            |p| p.counts.masked,
        ),
        (
            "lasthop_port_neighbour_replies",
            "ARP requests and neighbour solicitations of the guest to which the switch replied.",
            |p| p.counts.dropped(DropReason::NeighbourReply),
        ),
        (
            "lasthop_port_connections",
            "Connections of VMMs or drivers so far.",
            |p| p.state.as_ref().map_or(0, |state| state.connections),
        ),
        (
            "lasthop_port_rejected_connections",
            "Connections that were closed at once: another one was open, or the user was not \
             peer_user.",
            |p| front_ends(p).rejected_connections,
        ),
        (
            "lasthop_port_refused_messages",
            "vhost-user messages of VMMs or drivers that were refused.",
            |p| front_ends(p).refused_messages,
        ),
        (
            "lasthop_port_pauses",
            "Pauses: after a harmful connection, the port accepts no connection for a while.",
            |p| front_ends(p).pauses,
        ),
        (
            "lasthop_port_suppressed_log_lines",
            "Log lines about the port that were suppressed by the rate limit.",
            |p| front_ends(p).suppressed_log_lines,
        ),
    ];
    for (name, help, value) in families {
        let mut family = page.family(Kind::Counter, name, help);
        for (port, counted) in each(facts) {
            family.sample(&[("port", &port.name)], value(counted));
        }
    }
    let help =
        "Frames dropped, by reason, at the port that causes the drop: the sender or the receiver.";
    let mut family = page.family(Kind::Counter, "lasthop_port_dropped_frames", help);
    for (port, counted) in each(facts) {
        for reason in port::losses() {
            let labels = [("port", &*port.name), ("reason", reason.name())];
            family.sample(&labels, counted.counts.dropped(*reason));
        }
    }
}

fn mirrors(facts: &Facts, page: &mut Page) {
    let all = &facts.mirrors;
    let help = "Copies delivered by a mirror, since the mirror was added; a segmentation-offload \
                frame counts once.";
    let mut family = page.family(Kind::Counter, "lasthop_mirror_copied_frames", help);
    for mirror in all {
        family.sample(&[("mirror", &mirror.name)], mirror.copied.packets);
    }
    let help = "Bytes of the copies delivered by a mirror.";
    let mut family = page.family(Kind::Counter, "lasthop_mirror_copied_bytes", help);
    for mirror in all {
        family.sample(&[("mirror", &mirror.name)], mirror.copied.bytes);
    }
    let help = "Copies that a mirror could not deliver, by reason; they are also counted at the \
                receiving port.";
    let mut family = page.family(Kind::Counter, "lasthop_mirror_lost_frames", help);
    for mirror in all {
        for reason in COPY_LOSSES {
            let lost = mirror.lost.get(reason.name()).copied().unwrap_or_default();
            let labels = [("mirror", &*mirror.name), ("reason", reason.name())];
            family.sample(&labels, lost);
        }
    }
}

fn work(facts: &Facts, page: &mut Page) {
    let stages = |counted: &PortFacts| {
        let ticks = counted.counts.ticks;
        [("switching", ticks.switching), ("copying", ticks.copying)]
    };
    let help = "Cycles of the switch's counter spent for frames from a port's guest (switching) \
                and to it (copying).";
    let mut family = page.family(Kind::Counter, "lasthop_port_cpu_cycles", help);
    for (port, counted) in each(facts) {
        for (stage, ticks) in stages(counted) {
            family.sample(&[("port", &port.name), ("stage", stage)], ticks);
        }
    }
    // Seconds would not be a counter: the measured frequency becomes more exact over time.
    if let Some(rate) = facts.ticks_per_second {
        let help = "Frequency of the counter that cycles are measured with.";
        page.family(Kind::Gauge, "lasthop_cpu_cycles_per_second", help)
            .sample(&[], rate);
    }
}

fn workers(facts: &Facts, page: &mut Page) {
    type Value = fn(&WorkerFigures) -> f64;
    let families: [(&str, &str, Value); 2] = [
        (
            "lasthop_worker_busy_cycles",
            "Cycles of the switch's counter that a thread has spent for frames since the switch \
             started; their rate divided by lasthop_cpu_cycles_per_second is its load.",
            |w| w.busy_ticks as f64,
        ),
        (
            "lasthop_worker_cpu_seconds",
            "CPU time of a worker or a helper since the switch started, including polling without \
             frames.",
            |w| w.cpu_ns as f64 / 1e9,
        ),
    ];
    for (name, help, value) in families {
        let mut family = page.family(Kind::Counter, name, help);
        for (number, worker) in facts.workers.iter().enumerate() {
            let (number, kind) = (
                number.to_string(),
                if worker.helps { "helper" } else { "worker" },
            );
            family.sample(&[("worker", &*number), ("kind", kind)], value(worker));
        }
    }
}

fn ports(facts: &Facts, page: &mut Page) {
    let mut family = page.family(
        Kind::Gauge,
        "lasthop_port_info",
        "Always 1; the labels describe the port.",
    );
    for port in &facts.status.ports {
        let labels = [
            ("port", &*port.name),
            ("kind", port.kind.as_str()),
            ("segment", port.segment.as_deref().unwrap_or_default()),
            ("interface", port.interface.as_deref().unwrap_or_default()),
        ];
        family.sample(&labels, 1);
    }
    let help = "1 for the state that a port is in, 0 for the others.";
    let mut family = page.family(Kind::Gauge, "lasthop_port_state", help);
    for port in &facts.status.ports {
        for state in PortState::ALL {
            let labels = [("port", &*port.name), ("state", state.as_str())];
            family.sample(&labels, u8::from(port.state == *state));
        }
    }
    type Value = fn(&PortStatus) -> u64;
    let families: [(&str, &str, Value); 4] = [
        (
            "lasthop_port_queue_pairs",
            "Queue pairs that carry frames.",
            |p| p.queue_pairs.into(),
        ),
        (
            "lasthop_port_memory_bytes",
            "Guest memory that the switch maps for a port.",
            |p| p.memory_bytes,
        ),
        (
            "lasthop_port_weight",
            "Weight of the port: its share of the switch's time under contention.",
            |p| p.weight.into(),
        ),
        (
            "lasthop_port_faulted_queues",
            "Queues that were stopped because of an error of the guest.",
            |p| p.queue_faults.len() as u64,
        ),
    ];
    for (name, help, value) in families {
        let mut family = page.family(Kind::Gauge, name, help);
        for port in &facts.status.ports {
            family.sample(&[("port", &port.name)], value(port));
        }
    }
}

fn queues(facts: &Facts, page: &mut Page) {
    let help = "1 if a queue carries frames, else 0; even queues carry them to the guest.";
    let mut family = page.family(Kind::Gauge, "lasthop_queue_running", help);
    for (port, counted) in each(facts) {
        let queues = counted.state.iter().flat_map(|state| &state.queues);
        for queue in queues {
            let index = queue.index.to_string();
            let running = queue.enabled && queue.fault.is_none();
            let labels = [("port", &*port.name), ("queue", &*index)];
            family.sample(&labels, u8::from(running));
        }
    }
    queue_counters(facts, page);
}

fn queue_counters(facts: &Facts, page: &mut Page) {
    type Value = fn(&QueueCounts) -> f64;
    let families: [(&str, &str, Value); 4] = [
        (
            "lasthop_queue_frames",
            "Frames of a queue since it was started; even queues carry them to the guest.",
            |q| q.frames as f64,
        ),
        (
            "lasthop_queue_bytes",
            "Bytes of the frames of a queue since it was started.",
            |q| q.bytes as f64,
        ),
        (
            "lasthop_queue_notifications",
            "Notifications since the queue was started: kicks received from the guest for odd \
             queues, interrupts sent to the guest for even ones.",
            |q| q.notifications as f64,
        ),
        (
            "lasthop_queue_full_seconds",
            "Time for which frames to the guest found no receive buffer in the queue.",
            |q| q.full_ns as f64 / 1e9,
        ),
    ];
    for (name, help, value) in families {
        let mut family = page.family(Kind::Counter, name, help);
        for (port, counted) in each(facts) {
            for queue in counted.state.iter().flat_map(|state| &state.queues) {
                let index = queue.index.to_string();
                let labels = [("port", &*port.name), ("queue", &*index)];
                family.sample(&labels, value(&queue.counts));
            }
        }
    }
    let help = "Frames dropped that came from a queue, or were for it, by reason, since it was \
                started; reasons without drops are left out.";
    let mut family = page.family(Kind::Counter, "lasthop_queue_dropped_frames", help);
    for (port, counted) in each(facts) {
        for queue in counted.state.iter().flat_map(|state| &state.queues) {
            let index = queue.index.to_string();
            let losses = queue
                .counts
                .drops
                .iter()
                .filter(|(reason, _)| reason.is_loss());
            for (reason, frames) in losses {
                let (port, queue) = (("port", &*port.name), ("queue", &*index));
                family.sample(&[port, queue, ("reason", reason.name())], *frames);
            }
        }
    }
}

fn drivers(facts: &Facts, page: &mut Page) {
    type Value = fn(&api::v1::DriverStatus) -> u64;
    let families: [(&str, &str, Value); 3] = [
        (
            "lasthop_driver_restarts",
            "Restarts of a port's driver process.",
            |d| d.restarts,
        ),
        (
            "lasthop_driver_refused_frames",
            "Frames that the interface rejected: it is down or full, or they are too long for it.",
            |d| d.rejected_by_interface,
        ),
        (
            "lasthop_driver_oversized_frames",
            "Frames of the interface that were too long for a buffer.",
            |d| d.oversized_frames,
        ),
    ];
    for (name, help, value) in families {
        let mut family = page.family(Kind::Counter, name, help);
        for port in &facts.status.ports {
            if let Some(driver) = &port.driver_process {
                family.sample(&[("port", &port.name)], value(driver));
            }
        }
    }
}
