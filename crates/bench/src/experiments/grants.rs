//! Guests with an IOMMU: figures 3.6 to 3.13 of the thesis of K. K. Ram, chapter 3, with a table
//! for each way of the frames, by the time for which a page is mapped. The switch's ports and the
//! client are those of all rows, and ways of mapping take turns.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::machine::pin;
use e2e::statistics::median;
use testkit::frontend::IotlbMessage;
use testkit::iommu::{IommuConfig, Mode, PAGE};
use testkit::lean::{Grants, SUPER_FRAME_LEN};
use testkit::{FakeGuest, GuestConfig};

use super::parts::{Part, Run};
use crate::clients::grants::{Behind, GrantsClient, Mapped};
use crate::peers::{Kind, Peer, forwarder, lasthop};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

/// A way of the frames: who has an IOMMU, and what is measured.
struct Way {
    behind: Behind,
    rate: Part,
    ratio: Part,
    messages: Part,
    misses: Part,
    cpu: Part,
}

const AXIS: &str = "bytes of a frame";
const RATE: &str = "1000 frames a second";
const RATIO: &str = "% of the rate without an IOMMU in the same round";
const MESSAGES: &str = "UPDATE and INVALIDATE messages for each frame that arrived";
const MISSES: &str = "MISS messages for each frame that arrived";
const CPU: &str = "microseconds of CPU of the switch's processes for each frame that arrived";
const COUNTS: &str = "no figure";

const fn part(name: &'static str, value: &'static str, published: &'static str) -> Part {
    Part {
        name,
        axes: [AXIS, value],
        published,
    }
}

static WAYS: [Way; 3] = [
    Way {
        behind: Behind::Sender,
        rate: part(
            "sending",
            RATE,
            "figure 3.8, Mbit/s of a TCP stream: no IOMMU 8400, IOMMU 800, with batched flushes \
             1100, with mapping counts 6000, grants that are reused 9400, slab 9400",
        ),
        ratio: part(
            "sending-ratio",
            RATIO,
            "figure 3.8: IOMMU 10, with batched flushes 13, with mapping counts 71, grants that \
             are reused 112, slab 112",
        ),
        messages: part("sending-messages", MESSAGES, COUNTS),
        misses: part("sending-misses", MISSES, COUNTS),
        cpu: part(
            "sending-cpu",
            CPU,
            "figure 3.9, cycles a packet of 1514 bytes: IOMMU 600 % more than no IOMMU, with \
             mapping counts 80 % less than that, grants that are reused 45 % less; without reuse \
             88 % more",
        ),
    },
    Way {
        behind: Behind::Receiver,
        rate: part(
            "receiving",
            RATE,
            "figure 3.6, Mbit/s of a TCP stream: no IOMMU 7200, IOMMU 4300, with batched flushes \
             5300, grants that are reused 9400, slab 9300",
        ),
        ratio: part(
            "receiving-ratio",
            RATIO,
            "figure 3.6: IOMMU 60, with batched flushes 74, grants that are reused 131, slab 129",
        ),
        messages: part("receiving-messages", MESSAGES, COUNTS),
        misses: part("receiving-misses", MISSES, COUNTS),
        cpu: part(
            "receiving-cpu",
            CPU,
            "figure 3.7, cycles a packet of 1514 bytes: IOMMU 40 % more than no IOMMU, grants that \
             are reused 20 % less; without reuse 14 % more",
        ),
    },
    Way {
        behind: Behind::Both,
        rate: part(
            "guest-to-guest",
            RATE,
            "figure 3.10, Mbit/s of a TCP stream: no IOMMU 7800, IOMMU 1700, with mapping counts \
             9000, grants that are reused 22500, slab 23700",
        ),
        ratio: part(
            "guest-to-guest-ratio",
            RATIO,
            "figure 3.10: IOMMU 22, with mapping counts 115, grants that are reused 288, slab 304",
        ),
        messages: part("guest-to-guest-messages", MESSAGES, COUNTS),
        misses: part("guest-to-guest-misses", MISSES, COUNTS),
        cpu: part(
            "guest-to-guest-cpu",
            CPU,
            "figure 3.11, cycles a packet of 1514 bytes: IOMMU 170 % more than no IOMMU, grants \
             that are reused 40 % less; without reuse 475 % more",
        ),
    },
];

static ROUND_TRIP: Part = Part {
    name: "message",
    axes: [
        "1: GET_QUEUE_NUM, 2: INVALIDATE",
        "microseconds, median, idle port",
    ],
    published: "no figure",
};
static FLOOR: Part = Part {
    name: "floor",
    axes: ["messages a frame", RATE],
    published: "no figure",
};
static PAGES: Part = Part {
    name: "pages",
    axes: [
        "pages of 4 KiB of a guest in use",
        "Mpps, frames of 64 bytes",
    ],
    published: "no figure",
};

const SUPER_FRAME: u32 = SUPER_FRAME_LEN as u32;
const SIZES: [u32; 3] = [64, 1500, SUPER_FRAME];
/// The first is what the others are compared with.
const MODES: [(&str, Option<Grants>, u16); 8] = [
    ("no IOMMU", None, 32),
    (
        "persistent, 2 MiB",
        Some(Grants::Persistent { huge: true }),
        32,
    ),
    (
        "persistent, 4 KiB",
        Some(Grants::Persistent { huge: false }),
        32,
    ),
    ("reuse", Some(Grants::Reuse { drained: None }), 32),
    (
        "reuse, drained",
        Some(Grants::Reuse {
            drained: Some(4096),
        }),
        32,
    ),
    ("batched", Some(Grants::Batched(64)), 64),
    ("strict", Some(Grants::Strict), 1),
    ("on demand", Some(Grants::OnDemand), 32),
];
/// Entries of a queue, as QEMU has them.
const QUEUE: u16 = 256;
/// Other numbers, each entry with a buffer on a page of its own.
const QUEUES: [u16; 2] = [512, 2048];
const QUESTIONS: u32 = 500;
/// A message about a translation, and its answer, with their heads.
const MESSAGE: usize = 44;
const ANSWER: usize = 20;
const NOTES: [&str; 3] = [
    "frames go one way, from a port to the other, and one thread has both; where more are sent \
     than a receiver has mapped buffers for, the switch drops them: rates are of those that \
     arrived",
    "strict: UPDATE, frame, INVALIDATE, each answered; batched: UPDATEs of 64 frames together, \
     then INVALIDATEs for 64, neighbours in one; on demand: the switch asks (MISS), a page each; \
     reuse, drained: every page is unmapped once for 4096 frames",
    "floor: as many messages of 44 bytes as a strict frame has, answered one by one with 20 bytes \
     over a socket pair by a thread on the switch's core",
];

/// See the module.
pub(crate) fn grants(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "grants", &NOTES, &[Kind::Forwarder]);
    let peer = Peer::start(Kind::Lasthop, plan)?;
    for round in 1..=plan.rounds {
        progress(&format!("grants: round {round} of {}", plan.rounds));
        wait_quiet(plan.patience / 50)?;
        for way in &WAYS {
            for size in SIZES {
                let what = format!("{}, {size} bytes", way.rate.name);
                run.attempt(&what, |run| modes(run, &peer, way, size))?;
            }
        }
        run.attempt(FLOOR.name, floor)?;
        run.attempt(ROUND_TRIP.name, |run| messages(run, &peer))?;
        run.attempt(PAGES.name, |run| pages(run, &peer))?;
    }
    Ok(run.report("Guests with an IOMMU: by the time for which a page is mapped"))
}

/// All ways of mapping in turn.
fn modes(run: &mut Run<'_>, peer: &Peer, way: &'static Way, size: u32) -> Result<()> {
    let plan = run.plan;
    let mut none = None;
    for (name, mode, batch) in MODES {
        let mapped = Mapped {
            behind: way.behind,
            mode,
            batch,
        };
        let mut client = GrantsClient::connect(plan, peer, (size, QUEUE), mapped)?;
        client.run(plan.settle)?;
        let parts = [&way.rate, &way.ratio, &way.messages, &way.misses, &way.cpu];
        run.take_all(parts, name, size.into(), || {
            let before = lasthop::translations(peer)?;
            let cpu = peer.cpu_seconds();
            let (rate, report) = client.run(plan.window)?;
            let cpu = peer.cpu_seconds() - cpu;
            let after = lasthop::translations(peer)?;
            let frames = report.received.max(1) as f64;
            Ok([
                rate,
                100.0 * rate / *none.get_or_insert(rate),
                (after.messages - before.messages) as f64 / frames,
                (after.misses - before.misses) as f64 / frames,
                1e6 * cpu / frames,
            ])
        })?;
    }
    Ok(())
}

/// Messages that are answered by a thread on the switch's core, and nothing else.
fn floor(run: &mut Run<'_>) -> Result<()> {
    let plan = run.plan;
    // Strict: one IOMMU, and two.
    for messages in [2, 4] {
        run.take(&FLOOR, "socket pair", messages.into(), || {
            let seconds = round_trip(plan)?.as_secs_f64();
            Ok(1e-3 / (f64::from(messages) * seconds))
        })?;
    }
    Ok(())
}

/// Mean time of a message and its answer.
fn round_trip(plan: &Plan) -> Result<Duration> {
    let [switch, client] = plan.cores;
    let (mut ours, mut theirs) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        let there = scope.spawn(move || -> Result<()> {
            pin(switch)?;
            let mut message = [0; MESSAGE];
            // Until the other end is closed.
            while theirs.read_exact(&mut message).is_ok() {
                theirs.write_all(&[0; ANSWER])?;
            }
            Ok(())
        });
        let here = scope.spawn(move || -> Result<Duration> {
            pin(client)?;
            let (begin, mut count) = (Instant::now(), 0);
            while begin.elapsed() < plan.window {
                ours.write_all(&[0; MESSAGE])?;
                ours.read_exact(&mut [0; ANSWER])?;
                count += 1;
            }
            Ok(begin.elapsed() / count)
        });
        let time = here.join().ok().context("a thread panicked")?;
        there.join().ok().context("a thread panicked")??;
        time
    })
}

/// An INVALIDATE of a page that is not in use, beside a question that only has to be answered.
fn messages(run: &mut Run<'_>, peer: &Peer) -> Result<()> {
    let iommu = IommuConfig::new(Mode::Strict);
    let socket = &peer.sockets()[0];
    let mut guest = FakeGuest::connect_translated(socket, GuestConfig::default(), iommu)?;
    let message = IotlbMessage::invalidate(guest.iommu().reserve(1), PAGE);
    let front = guest.front()?;
    let [mut questions, mut revocations] = [Vec::new(), Vec::new()];
    let time =
        |times: &mut Vec<f64>, begin: Instant| times.push(begin.elapsed().as_secs_f64() * 1e6);
    for _ in 0..QUESTIONS {
        stop::check()?;
        let begin = Instant::now();
        front.get_queue_num()?;
        time(&mut questions, begin);
        let begin = Instant::now();
        front.iotlb(&message)?;
        time(&mut revocations, begin);
    }
    for (x, times) in [(1.0, questions), (2.0, revocations)] {
        run.take(&ROUND_TRIP, "Lasthop", x, || {
            median(&times).context("no messages")
        })?;
    }
    Ok(())
}

/// By pages in use, beside DPDK's forwarder, whose cache has room for 2048.
fn pages(run: &mut Run<'_>, lasthop: &Peer) -> Result<()> {
    let plan = run.plan;
    let forwarder = forwarder::with_iommu(plan)?;
    forwarder.freeze();
    for queue in QUEUES {
        for peer in [lasthop, &forwarder] {
            for (name, mode, batch) in [MODES[0], MODES[2]] {
                peer.thaw();
                let mapped = Mapped {
                    behind: Behind::Both,
                    mode,
                    batch,
                };
                let way = format!("{}, {name}", peer.kind().name());
                let taken = with_queue(run, peer, (&way, queue), mapped);
                peer.freeze();
                taken?;
            }
        }
    }
    Ok(())
}

fn with_queue(
    run: &mut Run<'_>,
    peer: &Peer,
    (way, queue): (&str, u16),
    mapped: Mapped,
) -> Result<()> {
    let plan = run.plan;
    let mut client = GrantsClient::connect(plan, peer, (64, queue), mapped)?;
    client.run(plan.settle)?;
    run.take(&PAGES, way, 2.0 * f64::from(queue), || {
        Ok(client.run(plan.window)?.0 / 1e3)
    })
}
