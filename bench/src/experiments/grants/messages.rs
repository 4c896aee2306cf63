//! Messages about translations on an idle port, and the floor of those that are strict.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::machine::pin;
use e2e::statistics::median;
use testkit::frontend::IotlbMessage;
use testkit::iommu::{IommuConfig, Mode, PAGE};
use testkit::{FakeGuest, GuestConfig};

use super::RATE;
use crate::experiments::parts::{Part, Run};
use crate::peers::Peer;
use crate::plan::Plan;
use crate::stop;

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

const QUESTIONS: u32 = 500;
/// A message about a translation, and its answer, with their heads.
const MESSAGE: usize = 44;
const ANSWER: usize = 20;

/// See the module.
pub(super) fn all(run: &mut Run<'_>, lasthop: &Peer) -> Result<()> {
    run.attempt(FLOOR.name, floor)?;
    run.attempt(ROUND_TRIP.name, |run| idle(run, lasthop))
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
fn idle(run: &mut Run<'_>, peer: &Peer) -> Result<()> {
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
