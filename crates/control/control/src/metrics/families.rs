//! Families of metrics.

use api::v1::{ABSENT_GUEST, PortStatus, ProcessState};
use ipc::figures::WAIT_BOUNDS_US;
use ipc::switching::{FrontEnds, QueueState};
use port::DropReason;

use super::text::{Kind, Page};
use super::{Facts, PortFacts, egress, limits, user};

/// Writes families of one type, whose samples have the same labels: for each family its name, its
/// help, and the value of a sample. Without labels each family has one sample.
macro_rules! families {
    ($page:ident, $kind:ident, $($name:literal $help:literal $value:expr;)*) => {
        $($page.family(Kind::$kind, $name, $help).sample(&[], $value);)*
    };
    ($page:ident, $kind:ident, $of:pat in $all:expr, $labels:tt,
        $($name:literal $help:literal $value:expr;)*
    ) => {$(
        let mut family = $page.family(Kind::$kind, $name, $help);
        for $of in $all {
            family.sample(&labels! $labels, $value);
        }
    )*};
}

/// Returns the labels of a sample.
macro_rules! labels {
    ($($label:literal = $text:expr),*) => {
        [$(($label, &*$text)),*]
    };
}

pub(super) use {families, labels};

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
    egress::write(facts, page);
    queues(facts, page);
    drivers(facts, page);
    user::write(facts, page);
}

/// Returns the counters of connections to a port, zero if the switch does not have the port.
fn front_ends(port: &PortFacts) -> FrontEnds {
    let state = port.state.as_ref();
    state.map(|state| state.front_ends).unwrap_or_default()
}

fn host(facts: &Facts, page: &mut Page) {
    let status = &facts.status;
    families! { page, Gauge, _ in [()], ["version" = status.version, "name" = status.name],
        "lasthop_build_info"
            "Always 1; the labels are the version of control and the name of the switch."
            1;
    }
    families! { page, Gauge,
        "lasthop_uptime_seconds" "Seconds since lasthop run started." status.uptime_seconds;
    }
    families! { page, Gauge, segment in &status.segments, ["segment" = segment.name],
        "lasthop_segment_ports" "Ports in a segment, including trunk ports." segment.ports.len();
    }
}

/// Maximum number of rules with metrics: more would make the page too long to collect every few
/// seconds.
const RULES: usize = 1000;

fn rules(facts: &Facts, page: &mut Page) {
    let busiest: Vec<_> = facts.rules.busiest(RULES).collect();
    families! { page, Counter, (list, rule, count) in &busiest, ["list" = list, "rule" = rule],
        "lasthop_acl_rule_packets"
            "Frames that a rule of an access list has decided, of the 1000 rules with the most \
             packets; up to five seconds old."
            count.packets;
        "lasthop_acl_rule_bytes"
            "Bytes of the frames that a rule of an access list has decided."
            count.bytes;
    }
}

fn processes(facts: &Facts, page: &mut Page) {
    let all = &facts.status.processes;
    families! { page, Gauge, process in all, ["process" = process.name],
        "lasthop_process_up" "1 if a process runs, else 0."
            u8::from(process.state == ProcessState::Running);
    }
    families! { page, Counter, process in all, ["process" = process.name],
        "lasthop_process_restarts" "Restarts of a process." process.restarts;
    }
    families! { page, Gauge, process in all, ["process" = process.name],
        "lasthop_process_uptime_seconds" "Seconds since the last start of a process."
            process.uptime_seconds;
    }
    let used = || {
        all.iter()
            .filter_map(|process| Some((&process.name, process.usage.as_ref()?)))
    };
    families! { page, Counter, (name, used) in used(), ["process" = name],
        "lasthop_process_cpu_seconds"
            "CPU time of all threads of a process, in user mode and in the kernel, since its last \
             start."
            used.cpu_ms as f64 / 1e3;
        "lasthop_process_wakeups"
            "How often the threads of a process that move frames have woken from a sleep, since \
             its last start: the workers of the switch, and the threads of a driver."
            used.wake_ups;
    }
    families! { page, Gauge, (name, used) in used(), ["process" = name],
        "lasthop_process_resident_memory_bytes"
            "Resident memory of a process; for the switch including the touched parts of its \
             guests' memory."
            used.resident_bytes;
        "lasthop_process_anonymous_memory_bytes"
            "Anonymous part of the resident memory: the process's own data."
            used.anonymous_bytes;
        "lasthop_process_mapped_memory_bytes"
            "Address space of a process, for the switch including the memory of guests, touched \
             or not."
            used.mapped_bytes;
    }
}

fn switch(facts: &Facts, page: &mut Page) {
    let (switch, figures) = (&facts.status.switch, &facts.figures);
    families! { page, Gauge,
        "lasthop_switch_epoch" "The epoch of the policy that the switch executes." switch.epoch;
        "lasthop_switch_workers" "Workers: threads that forward frames." switch.workers;
        "lasthop_flow_cache_flows" "Flows in the caches of all workers." figures.flows;
        "lasthop_upcall_waiting_frames" "Frames that wait for the answer to their upcall."
            figures.pending;
        "lasthop_fdb_entries" "Learned MAC addresses in the forwarding database." facts.stations;
    }
    families! { page, Counter,
        "lasthop_flow_cache_hits" "Frames that matched a cached flow, since the switch started."
            figures.hits;
        "lasthop_flow_cache_misses"
            "Frames that matched no cached flow, since the switch started."
            figures.misses;
        "lasthop_upcalls" "Upcalls sent by the switch, since the switch started." figures.upcalls;
        "lasthop_control_upcalls" "Upcalls answered by control, since control started."
            switch.upcalls;
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
    families! { page, Counter, (port, of) in each(facts), ["port" = port.name],
        "lasthop_port_received_frames"
            "Frames from the port's guest; a segmentation-offload frame counts once."
            of.counts.from_guest.packets;
        "lasthop_port_received_bytes"
            "Bytes of the frames from the port's guest, without the virtio-net header."
            of.counts.from_guest.bytes;
        "lasthop_port_sent_frames"
            "Frames to the port's guest; a segmentation-offload frame counts once."
            of.counts.to_guest.packets;
        "lasthop_port_sent_bytes"
            "Bytes of the frames to the port's guest, without the virtio-net header."
            of.counts.to_guest.bytes;
        "lasthop_port_skipped_batches"
            "Batches that skipped the port, because it had no receive buffer for a long time."
            of.counts.masked;
        "lasthop_port_neighbour_replies"
            "ARP requests and neighbour solicitations of the guest to which the switch replied."
            of.counts.dropped(DropReason::NeighbourReply);
        "lasthop_port_connections" "Connections of VMMs or drivers so far."
            of.state.as_ref().map_or(0, |state| state.connections);
        "lasthop_port_rejected_connections"
            "Connections that were closed at once: another one was open, or the user was not \
             peer_user."
            front_ends(of).rejected_connections;
        "lasthop_port_refused_messages"
            "vhost-user messages of VMMs or drivers that were refused."
            front_ends(of).refused_messages;
        "lasthop_port_pauses"
            "Pauses: after a harmful connection, the port accepts no connection for a while."
            front_ends(of).pauses;
        "lasthop_port_suppressed_log_lines"
            "Log lines about the port that were suppressed by the rate limit."
            front_ends(of).suppressed_log_lines;
    }
    let translated = || {
        each(facts).filter_map(|(port, of)| {
            let state = of.state.as_ref()?;
            Some((port, state.translation.as_ref()?))
        })
    };
    families! { page, Counter, (port, of) in translated(), ["port" = port.name],
        "lasthop_port_iotlb_updates"
            "Pages that the VMM of a guest with an IOMMU has granted: UPDATE messages."
            of.updates;
        "lasthop_port_iotlb_invalidations"
            "Pages that it has revoked: INVALIDATE messages."
            of.invalidations;
        "lasthop_port_iotlb_invalidation_wait_seconds"
            "Time for which INVALIDATE messages have waited for workers, since the port was added."
            of.waits.total_ns as f64 / 1e9;
        "lasthop_port_iotlb_evictions"
            "Translations that lost their place in the table to another."
            of.evictions;
        "lasthop_port_iotlb_refusals"
            "UPDATE and INVALIDATE messages that were refused."
            of.refusals;
        "lasthop_port_iotlb_misses"
            "Questions for translations to the VMM: MISS messages."
            of.misses;
        "lasthop_port_iotlb_denied"
            "Missing translations that the VMM has refused, or has not granted in time."
            of.denied;
        "lasthop_port_iotlb_unanswered"
            "Missing translations for which the VMM has not answered in time."
            of.unanswered;
    }
    families! { page, Gauge, (port, of) in translated(), ["port" = port.name],
        "lasthop_port_iotlb_entries" "Entries of the table of translations." of.entries;
    }
    drops(facts, page);
}

/// Writes the drops of ports. A series for each reason would be most of the page, so those of zero
/// are left out; the sum has a series for each port.
fn drops(facts: &Facts, page: &mut Page) {
    let lost = |of: &PortFacts| -> u64 {
        let losses = port::losses().filter(|reason| reason.name() != ABSENT_GUEST);
        losses.map(|reason| of.counts.dropped(*reason)).sum()
    };
    families! { page, Counter, (port, of) in each(facts), ["port" = port.name],
        "lasthop_port_lost_frames"
            "Frames lost: the sum of lasthop_port_dropped_frames_total, without the reason \
             receiver-down, as a guest that is off loses nothing."
            lost(of);
    }
    let by_reason = each(facts).flat_map(|(port, of)| {
        let all = port::losses().map(|reason| (reason.name(), of.counts.dropped(*reason)));
        all.filter(|(_, frames)| *frames > 0)
            .map(move |(reason, frames)| (port, reason, frames))
    });
    families! { page, Counter, (port, reason, frames) in by_reason,
        ["port" = port.name, "reason" = reason],
        "lasthop_port_dropped_frames"
            "Frames dropped, by reason, at the port that causes the drop: the sender or the \
             receiver; reasons without drops are left out."
            frames;
    }
}

fn mirrors(facts: &Facts, page: &mut Page) {
    let all = &facts.mirrors;
    families! { page, Counter, mirror in all, ["mirror" = mirror.name],
        "lasthop_mirror_copied_frames"
            "Copies delivered by a mirror, since the mirror was added; a segmentation-offload \
             frame counts once."
            mirror.copied.packets;
        "lasthop_mirror_copied_bytes" "Bytes of the copies delivered by a mirror."
            mirror.copied.bytes;
    }
    let lost = all.iter().flat_map(|of| {
        let lost = of.lost.iter().filter(|(_, frames)| **frames > 0);
        lost.map(move |(reason, frames)| (of, reason, *frames))
    });
    families! { page, Counter, (mirror, reason, frames) in lost,
        ["mirror" = mirror.name, "reason" = reason],
        "lasthop_mirror_lost_frames"
            "Copies that a mirror could not deliver, by reason; they are also counted at the \
             receiving port. Reasons without a loss are left out."
            frames;
    }
}

fn work(facts: &Facts, page: &mut Page) {
    let stages = each(facts).flat_map(|(port, of)| {
        let ticks = of.counts.ticks;
        let stages = [("switching", ticks.switching), ("copying", ticks.copying)];
        stages.map(|(stage, ticks)| (port, stage, ticks))
    });
    families! { page, Counter, (port, stage, ticks) in stages,
        ["port" = port.name, "stage" = stage],
        "lasthop_port_cpu_cycles"
            "Cycles of the switch's counter spent for frames from a port's guest (switching) and \
             to it (copying)."
            ticks;
    }
    // Seconds would not be a counter: the measured frequency becomes more exact over time.
    if let Some(rate) = facts.ticks_per_second {
        families! { page, Gauge,
            "lasthop_cpu_cycles_per_second"
                "Frequency of the counter that cycles are measured with."
                rate;
        }
    }
}

fn workers(facts: &Facts, page: &mut Page) {
    families! { page, Counter, (number, of) in facts.workers.iter().enumerate(),
        ["worker" = number.to_string()],
        "lasthop_worker_busy_cycles"
            "Cycles of the switch's counter that a worker has spent for frames since the switch \
             started; their rate divided by lasthop_cpu_cycles_per_second is its load."
            of.busy_ticks;
        "lasthop_worker_cpu_seconds"
            "CPU time of a worker since the switch started, including polling without frames."
            of.cpu_ns as f64 / 1e9;
        "lasthop_worker_queue_lock_wait_seconds"
            "Time in which a worker waited for queues of ports that other threads used, since \
             the switch started."
            of.queue_lock_wait_ns as f64 / 1e9;
    }
}

fn ports(facts: &Facts, page: &mut Page) {
    let all = &facts.status.ports;
    families! { page, Gauge, port in all, [
            "port" = port.name,
            "kind" = port.kind.as_str(),
            "segment" = port.segment.as_deref().unwrap_or_default(),
            "interface" = port.interface.as_deref().unwrap_or_default()
        ],
        "lasthop_port_info" "Always 1; the labels describe the port." 1;
    }
    families! { page, Gauge, port in all, ["port" = port.name, "state" = port.state.as_str()],
        "lasthop_port_state" "Always 1; the label is the state that a port is in." 1;
    }
    families! { page, Gauge, port in all, ["port" = port.name],
        "lasthop_port_queue_pairs" "Queue pairs that carry frames." port.queue_pairs;
        "lasthop_port_vcpu_threads"
            "vCPU threads found in the VMM, 0 where they are unknown." port.vcpus;
        "lasthop_port_memory_bytes" "Guest memory that the switch maps for a port."
            port.memory_bytes;
        "lasthop_port_weight"
            "Weight of the port: its share of the switch's time under contention."
            port.weight;
        "lasthop_port_faulted_queues" "Queues that were stopped because of an error of the guest."
            port.queue_faults.len();
    }
}

/// Returns all queues with their ports.
fn each_queue(facts: &Facts) -> impl Iterator<Item = (&PortStatus, &QueueState)> {
    each(facts).flat_map(|(port, of)| {
        let queues = of.state.iter().flat_map(|state| &state.queues);
        queues.map(move |queue| (port, queue))
    })
}

fn queues(facts: &Facts, page: &mut Page) {
    families! { page, Gauge, (port, queue) in each_queue(facts),
        ["port" = port.name, "queue" = queue.index.to_string()],
        "lasthop_queue_running"
            "1 if a queue carries frames, else 0; even queues carry them to the guest."
            u8::from(queue.enabled && queue.fault.is_none());
    }
    families! { page, Counter, (port, queue) in each_queue(facts),
        ["port" = port.name, "queue" = queue.index.to_string()],
        "lasthop_queue_frames"
            "Frames of a queue since it was started; even queues carry them to the guest."
            queue.counts.frames;
        "lasthop_queue_bytes" "Bytes of the frames of a queue since it was started."
            queue.counts.bytes;
        "lasthop_queue_notifications"
            "Notifications since the queue was started: kicks received from the guest for odd \
             queues, interrupts sent to the guest for even ones."
            queue.counts.notifications;
        "lasthop_queue_deferred_notifications"
            "Notifications that were put off because the guest ran, since the queue was started: \
             suppressed kicks for odd queues, deferred interrupts for even ones."
            queue.counts.deferred;
        "lasthop_queue_slept_through_notifications"
            "Deferred interrupts during which the guest went to sleep, since the queue was \
             started; even queues only."
            queue.counts.slept_through;
        "lasthop_queue_coalesced_kicks"
            "How often the guest was asked for one kick for several frames, since the queue was \
             started; odd queues only."
            queue.counts.coalesced;
        "lasthop_queue_full_seconds"
            "Time for which frames to the guest found no receive buffer in the queue."
            queue.counts.full_ns as f64 / 1e9;
        "lasthop_queue_misaligned_frames"
            "Frames to the guest in batches whose first frame was copied between places at \
             different offsets in their cache lines, since the queue was started; even queues only."
            queue.counts.misaligned;
    }
    let losses = each_queue(facts).flat_map(|(port, queue)| {
        let losses = queue
            .counts
            .drops
            .iter()
            .filter(|(reason, _)| reason.is_loss());
        losses.map(move |(reason, frames)| (port, queue, reason.name(), *frames))
    });
    families! { page, Counter, (port, queue, reason, frames) in losses,
        ["port" = port.name, "queue" = queue.index.to_string(), "reason" = reason],
        "lasthop_queue_dropped_frames"
            "Frames dropped that came from a queue, or were for it, by reason, since it was \
             started; reasons without drops are left out."
            frames;
    }
}

fn drivers(facts: &Facts, page: &mut Page) {
    let ports = facts.status.ports.iter();
    let drivers = || {
        ports
            .clone()
            .filter_map(|of| Some((&of.name, of.driver_status.as_ref()?)))
    };
    families! { page, Gauge, (name, driver) in drivers(), ["port" = name],
        "lasthop_driver_in_switch"
            "1 if the switch itself moves the frames of the interface, 0 if a process does or none."
            f64::from(u8::from(driver.in_switch));
    }
    families! { page, Counter, (name, driver) in drivers(), ["port" = name],
        "lasthop_driver_restarts"
            "Restarts of a port's driver process; a port that the switch itself serves has none."
            driver.restarts;
        "lasthop_driver_refused_frames"
            "Frames that the interface rejected: it is down or full, or they are too long for it."
            driver.rejected_by_interface;
        "lasthop_driver_oversized_frames"
            "Frames of the interface that were too long for a buffer."
            driver.oversized_frames;
        "lasthop_driver_received_frames"
            "Frames that came in by the interface; a super-frame counts as the frames that it is \
             cut into."
            driver.received_frames;
        "lasthop_driver_receive_calls"
            "System calls that brought frames of the interface; with xdp batches of its ring."
            driver.receive_calls;
        "lasthop_driver_sent_frames"
            "Frames that the interface took; a super-frame counts as the frames that it is cut \
             into."
            driver.sent_frames;
        "lasthop_driver_send_calls"
            "System calls that passed frames to the interface; with xdp batches for its ring."
            driver.send_calls;
    }
    let drops = drivers().filter_map(|(name, driver)| Some((name, driver.dropped_by_kernel?)));
    families! { page, Counter, (name, frames) in drops, ["port" = name],
        "lasthop_driver_dropped_by_kernel_frames"
            "Frames of the interface that the kernel dropped before the driver took them, because \
             there was no room; with packet and xdp."
            frames;
    }
}
