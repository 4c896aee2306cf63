//! A guest whose connections become sockets of the host: ports of kind `user` beside passt, pasta,
//! slirp4netns and libslirp, with one client: the stack of the library `net`.

pub(crate) mod gaps;
mod guest;
mod loads;
mod servers;
pub(crate) mod stack;
mod wires;
mod world;

use std::time::{Duration, Instant};

use anyhow::Result;

use self::guest::Guest;
use self::loads::{Load, Traffic};
use self::servers::{ECHO, at};
pub(super) use self::world::Kind;
use self::world::World;
use super::busy::{RequestSample, Requests};
use super::parts::{Bound, Part, Run};
use crate::plan::Plan;
use crate::process::wake_ups;
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static TCP_OUT: Part = Part {
    name: "tcp-out",
    axes: ["connections", "Gbit/s from the guest, frames of 1514 bytes"],
    published: "no figure; rootlesskit#615 claims, in one of both directions: slirp4netns 1.69, \
                pasta 0.24",
};
static TCP_IN: Part = Part {
    name: "tcp-in",
    axes: ["connections", "Gbit/s to the guest, frames of 1514 bytes"],
    published: "no figure",
};
static LONG_OUT: Part = Part {
    name: "super-frames-out",
    axes: ["connections", "Gbit/s from the guest, super-frames"],
    published: "no figure; rootlesskit#615 claims with an MTU of 65520: slirp4netns 8.11, \
                pasta 31.9",
};
static LONG_IN: Part = Part {
    name: "super-frames-in",
    axes: ["connections", "Gbit/s to the guest, super-frames"],
    published: "no figure",
};
static CPU: Part = Part {
    name: "cpu",
    axes: [
        "1: out, 2: in, 3: out with super-frames, 4: in with super-frames",
        "ms of the peer's processes for a Gbit, one connection",
    ],
    published: "no figure",
};
static UDP: Part = Part {
    name: "udp",
    axes: ["1: out, 2: in", "1000 datagrams of 1472 bytes a second"],
    published: "no figure",
};
static REQUESTS: Part = Part {
    name: "requests",
    axes: [
        "connections",
        "1000 requests of 64 bytes with their answers a second",
    ],
    published: "no figure",
};
static REQUEST_TIME: Part = Part {
    name: "request-time",
    axes: ["connections", "microseconds of a request, median"],
    published: "no figure",
};
static WAKE_UPS: Part = Part {
    name: "wake-ups",
    axes: ["connections", "wake-ups a request, all threads"],
    published: "no figure",
};
static CONNECTS: Part = Part {
    name: "connects",
    axes: ["at once", "1000 connections with a request a second"],
    published: "no figure",
};
static IDLE: Part = Part {
    name: "idle",
    axes: ["connections", "CPU of the peer's processes, % of a core"],
    published: "no figure",
};
static MEMORY: Part = Part {
    name: "memory",
    axes: [
        "connections",
        "KiB of the peer's processes for a connection",
    ],
    published: "no figure",
};

/// Connections at once.
const FLOWS: [usize; 2] = [1, 64];
/// Open connections whose memory is looked at.
const OPEN: usize = 128;
/// Bytes of each buffer of a connection; less for many with short frames, because the client has no
/// congestion control, and queues of 256 frames are to hold what all have on their way.
const BUFFER: usize = 64 << 10;
const FRAMES_BUFFER: usize = 4 << 10;
/// Time for a peer to have done what the last load left.
const REST: Duration = Duration::from_millis(100);
const NOTES: [&str; 4] = [
    "the client is the stack of the library in one thread, over a queue pair to Lasthop, over the \
     framing of QEMU's '-netdev stream' to passt and libslirp, and over a packet socket on the TAP \
     interface of pasta and slirp4netns; the guest opens all connections; its MTU is 1500, and \
     super-frames are those of virtio at Lasthop and an MTU of 65520 at the others, which libslirp \
     in QEMU does not have",
    "the servers are plain sockets behind a veth pair; client, servers and peer share the \
     machine's cores; of datagrams those count that arrive",
    "libslirp is QEMU's without a machine; pasta and slirp4netns are for containers, whose client \
     is the kernel's stack, in whose place the library's is here",
    "memory is anonymous and shared memory of the processes, without the kernel's for sockets",
];

/// A load with its parts: throughput and latency.
type Measured = (Load, usize, &'static Part);

pub(crate) fn user(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "user", &NOTES, &[]);
    let mut kinds = Vec::new();
    for kind in Kind::ALL {
        match kind.missing() {
            None => kinds.push(kind),
            Some(reason) => run.note(&reason),
        }
    }
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        for &kind in &kinds {
            let name = kind.name();
            run.attempt(name, |run| with_frames(run, kind))?;
            if kind.has_super_frames() {
                let what = format!("{name} with super-frames");
                run.attempt(&what, |run| with_super_frames(run, kind))?;
            }
        }
    }
    aims(&mut run);
    Ok(run.report("User networking: a guest's connections as sockets of the host"))
}

fn with_frames(run: &mut Run<'_>, kind: Kind) -> Result<()> {
    let (world, mut guest) = World::start(run.plan, kind, false)?;
    idle(run, kind, &world, &mut guest)?;
    for flows in FLOWS {
        let loads: [Measured; 4] = [
            (Load::TcpOut, flows, &TCP_OUT),
            (Load::TcpIn, flows, &TCP_IN),
            (Load::Requests, flows, &REQUESTS),
            (Load::Connects, flows, &CONNECTS),
        ];
        for load in loads {
            run.attempt(&format!("{}: {}", kind.name(), load.2.name), |run| {
                measure(run, kind, (&world, &mut guest), load)
            })?;
        }
    }
    for (x, load) in [(1.0, Load::UdpOut), (2.0, Load::UdpIn)] {
        run.attempt(&format!("{}: datagrams", kind.name()), |run| {
            datagrams(run, kind, (&world, &mut guest), load, x)
        })?;
    }
    memory(run, kind, &world, &mut guest)
}

fn with_super_frames(run: &mut Run<'_>, kind: Kind) -> Result<()> {
    let (world, mut guest) = World::start(run.plan, kind, true)?;
    for flows in FLOWS {
        for load in [
            (Load::TcpOut, flows, &LONG_OUT),
            (Load::TcpIn, flows, &LONG_IN),
        ] {
            run.attempt(&format!("{}: {}", kind.name(), load.2.name), |run| {
                measure(run, kind, (&world, &mut guest), load)
            })?;
        }
    }
    Ok(())
}

/// TCP.
fn measure(
    run: &mut Run<'_>,
    kind: Kind,
    (world, guest): (&World, &mut Guest),
    (load, flows, part): Measured,
) -> Result<()> {
    let plan = run.plan;
    guest.stack.set_buffer(buffer(part, flows));
    let mut traffic = Traffic::open(guest, load, flows)?;
    traffic.run(guest, &world.servers, plan.settle)?;
    let (mut gbit_ms, mut request_us, mut slept) = (None, None, 0.0);
    let taken = run.take(part, kind.name(), flows as f64, || {
        let before = wake_ups();
        let (began, cpu) = (Instant::now(), world.cpu_seconds());
        let tally = traffic.run(guest, &world.servers, plan.window)?;
        let cpu = world.cpu_seconds() - cpu;
        slept = wake_ups().saturating_sub(before) as f64 / tally.count.max(1) as f64;
        let gbit = tally.count as f64 * 8.0 / 1e9;
        gbit_ms = (gbit > 0.0).then_some(1e3 * cpu / gbit);
        request_us = (tally.latency.count() > 0).then(|| tally.latency.quantile(0.5) as f64 / 1e3);
        Ok(load.per_second(tally.count, began.elapsed().as_secs_f64()))
    });
    traffic.end(guest)?;
    guest.idle(REST)?;
    taken?;
    let place = [&TCP_OUT, &TCP_IN, &LONG_OUT, &LONG_IN];
    if let Some(place) = place.iter().position(|of| *of == part)
        && flows == 1
        && let Some(ms) = gbit_ms
    {
        run.add_at(&CPU, place as f64 + 1.0, ms);
    }
    match request_us {
        Some(us) if load == Load::Requests => {
            run.add(&REQUEST_TIME, us);
            run.add(&WAKE_UPS, slept);
        }
        _ => {}
    }
    Ok(())
}

/// Bytes of each buffer of a connection.
fn buffer(part: &Part, flows: usize) -> usize {
    let is_long = part == &LONG_OUT || part == &LONG_IN;
    if is_long || flows == 1 {
        BUFFER
    } else {
        FRAMES_BUFFER
    }
}

/// One connection with requests, at a peer of its own.
pub(super) struct Asking {
    plan: Plan,
    traffic: Traffic,
    guest: Guest,
    world: World,
}

impl Asking {
    pub(super) fn start(plan: &Plan, kind: Kind) -> Result<Self> {
        let (world, mut guest) = World::start(plan, kind, false)?;
        guest.stack.set_buffer(BUFFER);
        Ok(Self {
            plan: plan.clone(),
            traffic: Traffic::open(&mut guest, Load::Requests, 1)?,
            guest,
            world,
        })
    }
}

impl Requests for Asking {
    fn ask(&mut self) -> Result<RequestSample> {
        let Self {
            plan,
            traffic,
            guest,
            world,
        } = self;
        traffic.asked(guest, &world.servers, plan)
    }
}

fn datagrams(
    run: &mut Run<'_>,
    kind: Kind,
    (world, guest): (&World, &mut Guest),
    load: Load,
    x: f64,
) -> Result<()> {
    let plan = run.plan;
    guest.stack.set_buffer(BUFFER);
    let mut traffic = Traffic::open(guest, load, 1)?;
    traffic.run(guest, &world.servers, plan.settle)?;
    run.take(&UDP, kind.name(), x, || {
        let began = Instant::now();
        let tally = traffic.run(guest, &world.servers, plan.window)?;
        Ok(load.per_second(tally.count, began.elapsed().as_secs_f64()))
    })?;
    traffic.end(guest)?;
    // A server sends for a while to a client that has asked.
    guest.idle(3 * REST)
}

/// CPU time with one connection and without traffic, while the client sleeps too.
fn idle(run: &mut Run<'_>, kind: Kind, world: &World, guest: &mut Guest) -> Result<()> {
    let plan = run.plan;
    let ids = guest.open(at(ECHO), 1)?;
    guest.idle(plan.settle)?;
    run.take(&IDLE, kind.name(), 1.0, || {
        let (began, before) = (Instant::now(), world.cpu_seconds());
        stop::sleep(plan.idle / 2)?;
        let used = world.cpu_seconds() - before;
        Ok(100.0 * used / began.elapsed().as_secs_f64())
    })?;
    guest.abort(&ids)
}

fn memory(run: &mut Run<'_>, kind: Kind, world: &World, guest: &mut Guest) -> Result<()> {
    // What a first connection takes once is no connection's.
    let first = guest.open(at(ECHO), 1)?;
    guest.idle(REST)?;
    run.take(&MEMORY, kind.name(), OPEN as f64, || {
        let before = world.memory_kib();
        let ids = guest.open(at(ECHO), OPEN)?;
        guest.idle(REST)?;
        let used = world.memory_kib().saturating_sub(before);
        guest.abort(&ids)?;
        Ok(used as f64 / OPEN as f64)
    })?;
    guest.abort(&first)
}

fn aims(run: &mut Run<'_>) {
    let [ours, passt, slirp] = [Kind::Lasthop, Kind::Passt, Kind::Libslirp].map(Kind::name);
    for (part, direction) in [
        (&TCP_OUT, "out"),
        (&TCP_IN, "in"),
        (&LONG_OUT, "out with super-frames"),
        (&LONG_IN, "in with super-frames"),
    ] {
        for flows in FLOWS {
            let of = format!("TCP {direction}, {flows} connections");
            let ratio = run.ratio(part, flows as f64, [ours, passt]);
            run.aim(&format!("{of}, to passt"), ratio, Bound::AtLeast(1.0), "x");
            if direction == "out" || direction == "in" {
                let ratio = run.ratio(part, flows as f64, [ours, slirp]);
                run.aim(
                    &format!("{of}, to libslirp"),
                    ratio,
                    Bound::AtLeast(3.0),
                    "x",
                );
            }
        }
    }
    for flows in FLOWS {
        let ratio = run.ratio(&CONNECTS, flows as f64, [ours, passt]);
        let of = format!("connections with a request, {flows} at once, to passt");
        run.aim(&of, ratio, Bound::AtLeast(0.8), "x");
    }
    let idle = run.median(&IDLE, 1.0, ours);
    // Half of the last digit that the table shows.
    run.aim("CPU without traffic", idle, Bound::AtMost(0.5), " %");
}
