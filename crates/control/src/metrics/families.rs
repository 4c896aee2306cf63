//! Which metrics there are.

use api::v1::{PortState, PortStatus, ProcessState, ProcessUsage};
use channel::figures::{QueueCounts, WAIT_BOUNDS_US, WorkerFigures};
use channel::switching::FrontEnds;
use port::REASONS;
use port::counters::COPY_LOSSES;

use super::text::{Kind, Page};
use super::{Facts, PortFacts, limits};

/// All states that a port can be in.
const STATES: [PortState; 7] = [
    PortState::Starting,
    PortState::Waiting,
    PortState::Dialing,
    PortState::Connected,
    PortState::Up,
    PortState::Faulted,
    PortState::Unknown,
];

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

/// What was done against front ends of a port, if the switch knows the port.
fn front_ends(port: &PortFacts) -> FrontEnds {
    let state = port.state.as_ref();
    state.map(|state| state.front_ends).unwrap_or_default()
}

fn host(facts: &Facts, page: &mut Page) {
    let status = &facts.status;
    let help = "Always 1; the version is that of control, the name that of the switch.";
    let labels = [("version", &*status.version), ("name", &*status.name)];
    page.family(Kind::Gauge, "lasthop_build_info", help)
        .sample(&labels, 1);
    let help = "Seconds since lasthop run started.";
    page.family(Kind::Gauge, "lasthop_uptime_seconds", help)
        .sample(&[], status.uptime_seconds);
    let help = "Ports in a segment, trunk ports too.";
    let mut family = page.family(Kind::Gauge, "lasthop_segment_ports", help);
    for segment in &status.segments {
        family.sample(&[("segment", &segment.name)], segment.ports.len());
    }
}

/// Rules with metrics: more would make a page that is too long to collect every few seconds.
const RULES: usize = 1000;

fn rules(facts: &Facts, page: &mut Page) {
    let busiest: Vec<_> = facts.rules.busiest(RULES).collect();
    let help = "Frames about which a rule of an access list has decided, of the 1000 rules with the most, up to five seconds ago.";
    let mut family = page.family(Kind::Counter, "lasthop_acl_rule_packets", help);
    for (list, rule, count) in &busiest {
        family.sample(&[("list", list), ("rule", rule)], count.packets);
    }
    let help = "Bytes of the frames about which a rule of an access list has decided.";
    let mut family = page.family(Kind::Counter, "lasthop_acl_rule_bytes", help);
    for (list, rule, count) in &busiest {
        family.sample(&[("list", list), ("rule", rule)], count.bytes);
    }
}

fn processes(facts: &Facts, page: &mut Page) {
    let all = &facts.status.processes;
    let mut family = page.family(Kind::Gauge, "lasthop_process_up", "Whether a process runs.");
    for process in all {
        let up = process.state == ProcessState::Running;
        family.sample(&[("process", &process.name)], u8::from(up));
    }
    let help = "How often a process was started again.";
    let mut family = page.family(Kind::Counter, "lasthop_process_restarts", help);
    for process in all {
        family.sample(&[("process", &process.name)], process.restarts);
    }
    let help = "Seconds since a process was started last.";
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
            "Processor time of all threads of a process, in user mode and in the kernel, since it was started last.",
            |used| used.cpu_ms as f64 / 1e3,
        ),
        (
            Kind::Gauge,
            "lasthop_process_resident_memory_bytes",
            "Memory of a process that is in RAM; of the switch with what it has touched of its guests' memory.",
            |used| used.resident_bytes as f64,
        ),
        (
            Kind::Gauge,
            "lasthop_process_anonymous_memory_bytes",
            "Of that, what belongs to no file and to no shared memory: the process's own data.",
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
            "Threads that forward.",
            switch.workers.into(),
        ),
        (
            "lasthop_switch_helpers",
            "Threads that help workers while their cores idle.",
            switch.helpers.into(),
        ),
        (
            "lasthop_flow_cache_flows",
            "Flows in the caches of all workers.",
            figures.flows,
        ),
        (
            "lasthop_upcall_waiting_frames",
            "Frames that wait for a decision of control now.",
            figures.parked,
        ),
        (
            "lasthop_stations",
            "Addresses that were learned.",
            facts.stations,
        ),
    ] {
        page.family(Kind::Gauge, name, help).sample(&[], value);
    }
    for (name, help, value) in [
        (
            "lasthop_flow_cache_hits",
            "Frames that found a flow, since the switch started.",
            figures.hits,
        ),
        (
            "lasthop_flow_cache_misses",
            "Frames that found none, since the switch started.",
            figures.misses,
        ),
        (
            "lasthop_upcalls",
            "Questions to control, since the switch started.",
            figures.upcalls,
        ),
        (
            "lasthop_control_upcalls",
            "Questions that control has answered, since it started.",
            switch.upcalls,
        ),
        (
            "lasthop_helped_frames",
            "Frames that helpers have served, since the switch started.",
            figures.helped,
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
        "From a frame without a flow to control's answer, since the switch started.",
        counts.map(|(us, count)| (*us as f64 / 1e6, count)),
        (waits.longer, waits.total_ns as f64 / 1e9),
    );
}

/// Every port with what is counted at it.
fn each(facts: &Facts) -> impl Iterator<Item = (&PortStatus, &PortFacts)> {
    facts.status.ports.iter().zip(&facts.ports)
}

fn counters(facts: &Facts, page: &mut Page) {
    type Value = fn(&PortFacts) -> u64;
    let families: [(&str, &str, Value); 10] = [
        (
            "lasthop_port_received_frames",
            "Frames that the switch took from the port's guest; a segmentation-offload frame counts once.",
            |p| p.counts.from_guest.packets,
        ),
        (
            "lasthop_port_received_bytes",
            "Bytes of those, without the virtio-net header.",
            |p| p.counts.from_guest.bytes,
        ),
        (
            "lasthop_port_sent_frames",
            "Frames that the port's guest was given.",
            |p| p.counts.to_guest.packets,
        ),
        ("lasthop_port_sent_bytes", "Bytes of those.", |p| {
            p.counts.to_guest.bytes
        }),
        (
            "lasthop_port_masked_batches",
            "Batches that found the port without a buffer for so long that it was not tried.",
            |p| p.counts.masked,
        ),
        (
            "lasthop_port_connections",
            "Connections of VMMs or drivers so far.",
            |p| p.state.as_ref().map_or(0, |state| state.connections),
        ),
        (
            "lasthop_port_turned_away_connections",
            "Connections that were closed as soon as they were made.",
            |p| front_ends(p).turned_away,
        ),
        (
            "lasthop_port_refused_messages",
            "vhost-user messages of VMMs or drivers that were refused.",
            |p| front_ends(p).refusals,
        ),
        (
            "lasthop_port_pauses",
            "Times that the port took no connection for a while, after one that did harm.",
            |p| front_ends(p).pauses,
        ),
        (
            "lasthop_port_log_lines_left_out",
            "Lines about the port that were left out of the log, because there were many.",
            |p| front_ends(p).lines_left_out,
        ),
    ];
    for (name, help, value) in families {
        let mut family = page.family(Kind::Counter, name, help);
        for (port, counted) in each(facts) {
            family.sample(&[("port", &port.name)], value(counted));
        }
    }
    let help = "Frames dropped, at the port that is the cause: the sender or the receiver.";
    let mut family = page.family(Kind::Counter, "lasthop_port_dropped_frames", help);
    for (port, counted) in each(facts) {
        for reason in REASONS {
            let labels = [("port", &*port.name), ("reason", reason.name())];
            family.sample(&labels, counted.counts.dropped(*reason));
        }
    }
}

fn mirrors(facts: &Facts, page: &mut Page) {
    let all = &facts.mirrors;
    let help = "Copies that a mirror's receiver was given, since the mirror was added; a segmentation-offload frame counts once.";
    let mut family = page.family(Kind::Counter, "lasthop_mirror_copied_frames", help);
    for mirror in all {
        family.sample(&[("mirror", &mirror.name)], mirror.copied.packets);
    }
    let help = "Bytes of those.";
    let mut family = page.family(Kind::Counter, "lasthop_mirror_copied_bytes", help);
    for mirror in all {
        family.sample(&[("mirror", &mirror.name)], mirror.copied.bytes);
    }
    let help = "Copies that a mirror's receiver was not given; they are counted at that port, too.";
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
    let help = "Cycles of the switch's counter for frames from a port's guest (switching) and to it (copying).";
    let mut family = page.family(Kind::Counter, "lasthop_port_processor_cycles", help);
    for (port, counted) in each(facts) {
        for (stage, ticks) in stages(counted) {
            family.sample(&[("port", &port.name), ("stage", stage)], ticks);
        }
    }
    // Seconds would not be a counter: how many cycles make one becomes known more and more exactly.
    if let Some(rate) = facts.ticks_per_second {
        let help = "Cycles of that counter in a second.";
        page.family(Kind::Gauge, "lasthop_processor_cycles_per_second", help)
            .sample(&[], rate);
    }
}

fn workers(facts: &Facts, page: &mut Page) {
    type Value = fn(&WorkerFigures) -> f64;
    let families: [(&str, &str, Value); 2] = [
        (
            "lasthop_worker_busy_cycles",
            "Cycles of the switch's counter that a thread has spent for frames since the switch was started: its share is their rate by lasthop_processor_cycles_per_second.",
            |w| w.busy_ticks as f64,
        ),
        (
            "lasthop_worker_processor_seconds",
            "Processor time of a thread that forwards since the switch was started, also that in which it looked for frames and found none.",
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
        "Always 1; the labels say what the port is.",
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
        for state in STATES {
            let labels = [("port", &*port.name), ("state", state.as_str())];
            family.sample(&labels, u8::from(port.state == state));
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
            "Guest memory that the switch maps.",
            |p| p.memory_bytes,
        ),
        (
            "lasthop_port_weight",
            "The port's part of the switch's time.",
            |p| p.weight.into(),
        ),
        (
            "lasthop_port_faulted_queues",
            "Queues that were stopped for what the guest did.",
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
    let help = "Whether a queue carries frames; even queues carry them to the guest.";
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
            "Frames that a queue has carried since it was started; even queues carry them to the guest.",
            |q| q.frames as f64,
        ),
        ("lasthop_queue_bytes", "Bytes of those.", |q| q.bytes as f64),
        (
            "lasthop_queue_notifications",
            "Kicks of the guest that were heard, of odd queues; interrupts of the guest, of even ones.",
            |q| q.notifications as f64,
        ),
        (
            "lasthop_queue_full_seconds",
            "Time without a receive buffer when one was wanted, until one was there.",
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
    let help = "Frames dropped that came by a queue, or were to go by it, since it was started; without reasons of which there are none.";
    let mut family = page.family(Kind::Counter, "lasthop_queue_dropped_frames", help);
    for (port, counted) in each(facts) {
        for queue in counted.state.iter().flat_map(|state| &state.queues) {
            let index = queue.index.to_string();
            for (reason, frames) in &queue.counts.drops {
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
            "How often a port's driver was started again.",
            |d| d.restarts,
        ),
        (
            "lasthop_driver_refused_frames",
            "Frames that the interface did not take: it is down, full, or they are too long for it.",
            |d| d.refused_by_interface,
        ),
        (
            "lasthop_driver_oversized_frames",
            "Frames of the interface that were too long for a buffer.",
            |d| d.too_long,
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
