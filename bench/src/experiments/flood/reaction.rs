//! How soon a prefilter knows a flood, and how soon it forgets one that is allowed.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::policy;
use super::sender::{Frames, Kind, socket};
use super::world::{FloodWorld, VICTIM, Way};
use crate::experiments::parts::{Bound, Part, Run};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

/// Bytes of a frame.
const SIZE: usize = 64;
/// From one look at the counters to the next.
const LOOK: Duration = Duration::from_millis(10);
/// At the end of a flood, what is left of it says nothing about shares.
const TAIL: Duration = Duration::from_secs(1);
/// How long the first allowed frame may take.
const ALLOWED: Duration = Duration::from_secs(5);

const PUBLISHED: &str = "no figure";
const KINDS: &str = "1: fixed flow, 2: random source, 3: random source and ports";
static MOST: Part = Part {
    name: "95-percent",
    axes: [
        KINDS,
        "ms from the first frame, until 95 % of all later ones end at the wire",
    ],
    published: PUBLISHED,
};
static NEARLY: Part = Part {
    name: "98-percent",
    axes: [
        KINDS,
        "ms from the first frame, until 98 % of all later ones end at the wire",
    ],
    published: PUBLISHED,
};
static ALL: Part = Part {
    name: "99-percent",
    axes: [
        KINDS,
        "ms from the first frame, until 99 % of all later ones end at the wire",
    ],
    published: PUBLISHED,
};
static ENTRIES: Part = Part {
    name: "entries",
    axes: [KINDS, "entries at the end of the flood"],
    published: PUBLISHED,
};
static CHANGE: Part = Part {
    name: "allowed",
    axes: [
        KINDS,
        "ms from the end of 'lasthop apply' to the first frame that it allows; below 0: before",
    ],
    published: PUBLISHED,
};

const NOTES: [&str; 3] = [
    "a table that is empty, and a flood of 64 bytes by a packet socket, by the example list of \
     the experiment flood; counters are read every 10 ms, those of the table by GET \
     /v1/ports/up0, and those of the interface from /proc/net/dev",
    "a share counts from its time to the end of the flood: four seconds, six with random ports",
    "then, beside the flood, 'lasthop apply' adds a rule that allows its UDP frames; the first \
     of them that the guest's interface sees counts, but those that the example allows",
];

/// See the module.
pub(crate) fn reaction(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "flood-reaction", &NOTES, &[]);
    let rates: &[Option<u32>] = if plan.quick {
        &[None]
    } else {
        &[None, Some(100_000)]
    };
    for _ in 0..plan.rounds {
        for &rate in rates {
            for (kind, x) in Kind::ALL.into_iter().zip(1_u8..) {
                for way in [Way::PacketAuto, Way::XdpAuto] {
                    let name = name(way, rate);
                    let what = format!("{name}, {}", kind.name());
                    progress(&format!("flood-reaction: {what}"));
                    run.attempt(&what, |run| {
                        wait_quiet(plan.patience / 100)?;
                        let world = FloodWorld::start(plan, way)?;
                        let parts = [&MOST, &NEARLY, &ALL, &ENTRIES, &CHANGE];
                        run.take_all(parts, &name, f64::from(x), || {
                            react(plan, &world, (way, kind), rate)
                        })
                    })?;
                }
            }
        }
    }
    for way in [Way::PacketAuto, Way::XdpAuto] {
        judge(&mut run, &name(way, None));
    }
    Ok(run.report("Denied floods: how soon they end at the wire"))
}

fn name(way: Way, rate: Option<u32>) -> String {
    let rate = rate.map_or_else(
        || "all of a core".to_owned(),
        |rate| format!("{} kpps", rate / 1000),
    );
    format!("{}, {rate}", way.name())
}

fn judge(run: &mut Run<'_>, way: &str) {
    for (kind, x) in Kind::ALL.into_iter().zip([1.0, 2.0, 3.0]) {
        let (part, share, most) = match kind {
            Kind::RandomAll => (&NEARLY, 98, 4000.0),
            _ => (&ALL, 99, 2000.0),
        };
        let what = format!("{way}, {}: {share} % at the wire", kind.name());
        let seen = run.median(part, x, way);
        run.aim(&what, seen, Bound::AtMost(most), " ms");
    }
    let seen = run.median(&ENTRIES, 3.0, way);
    let what = format!("{way}, {}: entries", Kind::RandomAll.name());
    run.aim(&what, seen, Bound::AtMost(128.0), "");
}

/// Counters at one time.
#[derive(Debug, Clone, Copy)]
struct Look {
    ms: f64,
    arrived: f64,
    ended: f64,
}

fn look(world: &FloodWorld, start: Instant) -> Result<(Look, u64)> {
    let (before, at) = (world.arrived()?, Instant::now());
    let ended = world.ended()?;
    let middle = at + at.elapsed() / 2;
    let after = world.arrived()?;
    let look = Look {
        ms: middle.saturating_duration_since(start).as_secs_f64() * 1e3,
        arrived: f64::midpoint(before as f64, after as f64),
        ended: ended.frames as f64,
    };
    Ok((look, ended.entries))
}

/// A flood from its first frame on, and a change that allows it.
fn react(
    plan: &Plan,
    world: &FloodWorld,
    (way, kind): (Way, Kind),
    rate: Option<u32>,
) -> Result<[f64; 5]> {
    let time = Duration::from_secs(if kind == Kind::RandomAll { 6 } else { 4 });
    let flood = world.flood(plan, VICTIM, Frames::Of(kind, SIZE), rate)?;
    let first = stop::try_wait("a first frame", TAIL, || Ok(flood.first()))?;
    let (mut looks, mut entries) = (Vec::new(), 0);
    while first.elapsed() < time {
        let (look, now) = look(world, first)?;
        looks.push(look);
        entries = now;
        stop::sleep(LOOK)?;
    }
    let change = first_allowed(world, way, kind)?;
    flood.end()?;
    let until = (time - TAIL).as_secs_f64() * 1e3;
    let [most, nearly, all] = [0.95, 0.98, 0.99].map(|share| reached(&looks, until, share));
    Ok([most, nearly, all, entries as f64, change])
}

/// The time from which on this share of all later frames ended; infinite where it is after `until`.
fn reached(looks: &[Look], until: f64, share: f64) -> f64 {
    let Some(end) = looks.last() else {
        return f64::INFINITY;
    };
    let is_late = |look: &Look| {
        let (arrived, ended) = (end.arrived - look.arrived, end.ended - look.ended);
        ended < share * arrived
    };
    let early = looks.partition_point(|look| look.ms < until);
    let last = looks[..early].iter().rposition(is_late);
    let after = last.map_or(0, |last| last + 1);
    if after < early {
        looks[after].ms
    } else {
        f64::INFINITY
    }
}

/// Milliseconds from the answer to a change that allows the flood's UDP frames to the first one.
fn first_allowed(world: &FloodWorld, way: Way, kind: Kind) -> Result<f64> {
    let socket = world.victim.inside(|| socket("victim0", libc::ETH_P_IP))?;
    let ports = match kind {
        Kind::RandomAll => "",
        _ => "destination_ports = [9]\n",
    };
    let rule = format!("name = \"new\"\naction = \"allow\"\nprotocol = \"udp\"\n{ports}");
    let lists = policy::example_with(&rule);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| first_frame(&socket, &ended));
        let applied = world.apply(way, &lists);
        let answer = Instant::now();
        let _ = stop::try_wait("an allowed frame", ALLOWED, || {
            Ok(seen.is_finished().then_some(()))
        });
        ended.store(true, Ordering::Relaxed);
        let seen = seen.join().ok().context("a thread panicked")??;
        applied?;
        let seen = seen.context("no allowed frame arrived")?;
        let later = seen.saturating_duration_since(answer).as_secs_f64();
        let earlier = answer.saturating_duration_since(seen).as_secs_f64();
        Ok((later - earlier) * 1e3)
    })
}

/// When the first UDP frame of a flood arrived that the example does not allow.
fn first_frame(socket: &OwnedFd, ended: &AtomicBool) -> Result<Option<Instant>> {
    let wait = libc::timeval {
        tv_sec: 0,
        tv_usec: 20_000,
    };
    let len = u32::try_from(size_of::<libc::timeval>())?;
    let option = (&raw const wait).cast();
    // SAFETY: the call reads a value that lives until it has returned.
    let done = unsafe {
        let fd = socket.as_raw_fd();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, option, len)
    };
    ensure!(done == 0, "a time-out");
    let mut frame = [0; 2048];
    while !ended.load(Ordering::Relaxed) {
        let flags = rustix::net::RecvFlags::empty();
        let Ok((len, _)) = rustix::net::recv(socket, &mut frame[..], flags) else {
            continue;
        };
        let is_udp = len >= 42 && frame[6..12] == super::sender::FROM && frame[23] == 17;
        if is_udp && frame[34..36] != [0, 53] {
            return Ok(Some(Instant::now()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(ended: &[f64]) -> Vec<Look> {
        let looks = ended.iter().enumerate();
        let look = |(index, &ended): (usize, &f64)| Look {
            ms: 10.0 * index as f64,
            arrived: 100.0 * index as f64,
            ended,
        };
        looks.map(look).collect()
    }

    #[test]
    fn a_share_holds_from_its_time_to_the_end() {
        // Nothing for 20 ms, then nearly all.
        let looks = looks(&[0.0, 0.0, 0.0, 97.0, 194.0, 291.0, 388.0]);
        assert!((reached(&looks, 50.0, 0.95) - 20.0).abs() < 1e-9);
        assert!(reached(&looks, 50.0, 0.99).is_infinite());
        assert!(reached(&[], 50.0, 0.5).is_infinite());
    }
}
