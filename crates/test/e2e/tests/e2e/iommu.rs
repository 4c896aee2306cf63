//! Guests with an IOMMU: what they map is reached, and nothing else, and nothing any more once
//! INVALIDATE was answered.
//!
//! The guests are our own (`testkit::iommu`): their pages lie scattered, their buffers get other
//! pages each time, and the old ones are watched. `LASTHOP_IOMMU_KILLS=1000` increases the number
//! of kills.

mod answers;
mod grants;
mod records;
mod traffic;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use e2e::lasthop::{Lasthop, guest_ports};
use e2e::numbered::{Stream, collect, introduce, settles};
use testkit::driver::{Piece, Shape};
use testkit::iommu::{IommuConfig, Mode, is_canary};
use testkit::lasthop::port;
use testkit::net::{HEADER_LEN, NetHeader};
use testkit::packets::{Flow, SequenceChecker, payload_of, udp};
use testkit::stop::Stop;
use testkit::wait::{LIMIT, wait_until};
use testkit::{FakeGuest, GuestConfig};

/// Frames of one sender on their way: fewer than a receiver's buffers.
const WINDOW: u64 = 32;
/// Frames that use each receive buffer of a guest.
const LAP: u64 = 256;
/// Time without an arrival after which a guest sends one frame more.
const SEEMS_LOST: Duration = Duration::from_millis(10);

/// `vm1` and `vm2` in one segment, `vm3` and `vm4` in another; more keys of the switch.
fn config(switch: &str) -> String {
    let segment = "[[segment]]\nname = \"red\"\n";
    let red = ["vm3", "vm4"].map(|name| port(name, "segment = \"red\""));
    format!(
        "{}{segment}{}",
        guest_ports(switch, &["vm1", "vm2"]),
        red.concat()
    )
}

fn start(switch: &str) -> Lasthop {
    Lasthop::start(&config(switch))
}

fn layouts() -> [GuestConfig; 2] {
    [GuestConfig::default(), GuestConfig::default().packed()]
}

/// Guests at `vm1` and `vm2` that know each other.
fn pair(lasthop: &Lasthop, config: &GuestConfig, iommu: IommuConfig) -> [FakeGuest; 2] {
    let [mut a, mut b] = [1, 2].map(|n| {
        let config = config.clone().guest(n);
        lasthop.connect_translated(&format!("vm{n}"), config, iommu)
    });
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    all_asked([&a, &b]);
    if iommu.mode == Mode::OnDemand {
        // Buffers that were offered behind the first look at a ring are asked for with a frame: as
        // many as there are buffers use each of them.
        let buffers = config.queue_size.into();
        arrive_in_the_end(&mut a, &mut b, Flow::v4(1, 2), buffers);
        arrive_in_the_end(&mut b, &mut a, Flow::v4(2, 1), buffers);
        all_asked([&a, &b]);
    }
    [a, b]
}

/// Waits until no page is asked for any more: frames that come before are lost.
fn all_asked(guests: [&FakeGuest; 2]) {
    if guests[0].iommu().config().mode != Mode::OnDemand {
        return;
    }
    let mut last = [0; 2];
    wait_until("all pages are asked for", || {
        std::thread::sleep(Duration::from_millis(50));
        let asked = guests.map(|guest| guest.iommu().counts().misses);
        std::mem::replace(&mut last, asked) == asked
    });
}

/// Guests at `vm3` and `vm4` without an IOMMU.
fn others(lasthop: &Lasthop) -> [FakeGuest; 2] {
    let [mut c, mut d] = [("vm3", 3), ("vm4", 4)].map(|(port, n)| lasthop.connect(port, n));
    introduce(&mut c, &mut d, Flow::v4(3, 4));
    [c, d]
}

fn sound(guests: &[FakeGuest]) {
    for guest in guests {
        if let Err(fault) = guest.iommu().verify() {
            panic!("{fault}; {:?}", guest.iommu().counts());
        }
    }
}

/// Numbered frames between two guests, few of them on their way, until `done`.
struct Talk {
    /// How many of each guest's frames its peer has seen.
    seen: [AtomicU64; 2],
    stop: Stop,
}

impl Talk {
    fn new() -> Talk {
        Talk {
            seen: Default::default(),
            stop: Stop::new(),
        }
    }

    /// The part of guest `me`. Frames that seem lost do not stop it.
    fn part(&self, guest: &mut FakeGuest, me: usize, flow: Flow) -> SequenceChecker {
        let mut stream = Stream::new(me as u16, flow);
        let mut checker = SequenceChecker::default();
        let (mut moved, mut turns) = ((0, Instant::now()), 0u32);
        let is_asked = guest.iommu().config().mode == Mode::OnDemand;
        while !self.stop.is_set() {
            let seen = self.seen[me].load(SeqCst);
            if seen > moved.0 {
                moved = (seen, Instant::now());
            }
            let end = if moved.1.elapsed() > SEEMS_LOST {
                moved.1 = Instant::now();
                stream.sent() + 1
            } else {
                seen + WINDOW
            };
            while stream.sent() < end {
                stream.send(guest, 64 + (stream.sent() as usize * 37) % 1300);
            }
            turns += 1;
            // A buffer that has to be asked for again costs a frame.
            let often = if is_asked { 32 } else { 4 };
            if turns.is_multiple_of(often) {
                guest.replace_buffers(1);
            }
            self.collect(guest, me, &mut checker, Duration::from_millis(1));
        }
        let quiet = Duration::from_millis(50);
        while self.collect(guest, me, &mut checker, quiet) {}
        checker
    }

    /// Waits so long for a frame, and sees all that have come. Returns whether any have.
    fn collect(
        &self,
        guest: &mut FakeGuest,
        me: usize,
        checker: &mut SequenceChecker,
        pause: Duration,
    ) -> bool {
        let first = guest.recv(pause).expect("the device keeps the rules");
        let more = guest.recv_all().expect("the device keeps the rules");
        let is_any = first.is_some();
        for got in first.into_iter().chain(more) {
            assert!(!is_canary(&got.frame), "it has bytes of a revoked page");
            if let Ok(payload) = payload_of(&got.frame) {
                checker.see(payload);
            }
        }
        let peer = 1 - me;
        self.seen[peer].store(checker.next_of(peer as u16), SeqCst);
        is_any
    }

    /// Waits until the peers of both guests have seen so many frames more.
    fn wait_more(&self, frames: u64) {
        let before = [0, 1].map(|n| self.seen[n].load(SeqCst));
        wait_until("both guests see traffic", || {
            [0, 1]
                .iter()
                .all(|n| self.seen[*n].load(SeqCst) >= before[*n] + frames)
        });
    }

    /// Lets the guests talk while `work` is done. Both have seen nothing damaged, and no page that
    /// they took back was touched.
    fn during(guests: &mut [FakeGuest; 2], work: impl FnOnce(&Talk)) -> [SequenceChecker; 2] {
        let talk = Talk::new();
        let [a, b] = &mut *guests;
        let checkers = std::thread::scope(|scope| {
            let first = scope.spawn(|| talk.part(a, 0, Flow::v4(1, 2)));
            let second = scope.spawn(|| talk.part(b, 1, Flow::v4(2, 1)));
            let end = talk.stop.at_end();
            work(&talk);
            drop(end);
            [first, second].map(|part| part.join().expect("frames are sound"))
        });
        for guest in &*guests {
            let watched = guest.iommu().verify();
            assert!(watched.as_ref().is_ok_and(|n| *n > 0), "{watched:?}");
        }
        assert_eq!(checkers.each_ref().map(|checker| checker.damaged), [0; 2]);
        checkers
    }
}

/// Sends frames until so many of them arrive in a row: buffers may have to be asked for again.
fn arrive_in_the_end(from: &mut FakeGuest, to: &mut FakeGuest, flow: Flow, frames: u64) {
    let (mut id, mut whole) = (1000, 0);
    wait_until("frames arrive in a row", || {
        id += 1;
        let (mut stream, mut checker) = (Stream::new(id, flow), SequenceChecker::default());
        for _ in 0..WINDOW {
            stream.send(from, 500);
        }
        // Frames of one sender keep their order: after a later one none is on its way.
        wait_until("a later frame", || {
            stream.send(from, 500);
            collect(to, &mut checker);
            checker.next_of(id) > WINDOW
        });
        whole = if checker.lost() == 0 {
            whole + WINDOW
        } else {
            0
        };
        whole >= frames
    });
    settle_down(from, to, flow);
}

/// Frames one way, all of which arrive. A failure names what the switch has counted meanwhile.
#[track_caller]
fn all_arrive(
    lasthop: &Lasthop,
    from: &mut FakeGuest,
    to: &mut FakeGuest,
    flow: Flow,
    frames: u64,
) {
    let before = lasthop.stats();
    let mut stream = Stream::new(9, flow);
    let mut checker = SequenceChecker::default();
    while stream.sent() < frames {
        for _ in 0..WINDOW.min(frames - stream.sent()) {
            stream.send(from, 64 + (stream.sent() as usize * 131) % 1300);
        }
        if !settles(to, &mut checker, &stream, LIMIT) {
            let counted = lasthop.stats().since(&before);
            panic!("of {} frames: {checker:?}; {counted:?}", stream.sent());
        }
    }
}

/// Sends what lies at `iova` as one descriptor, and waits until the device has returned it.
fn send_at(guest: &mut FakeGuest, iova: u64, len: u64) {
    let pair = &mut guest.pairs[0];
    pair.drain().expect("the device returns frames");
    let pieces = [Piece::new(iova, len as u32)];
    pair.nic
        .tx
        .add(&pieces, &[], Shape::Direct, 0)
        .expect("room");
    pair.flush();
    wait_until("the descriptor is used", || {
        pair.nic
            .tx
            .poll()
            .expect("the device keeps the rules")
            .is_some()
    });
}

/// A page with a frame behind an empty header, and their length.
fn page_with(guest: &FakeGuest, payload: &[u8]) -> (u64, u64) {
    let page = guest.iommu().page();
    let header = &NetHeader::default().to_bytes()[..HEADER_LEN];
    let bytes = [header, &udp(&Flow::v4(1, 2), payload)].concat();
    guest.ram().write(page, &bytes);
    (page, bytes.len() as u64)
}

fn arrives(guest: &mut FakeGuest, payload: &[u8]) {
    let got = guest.recv(LIMIT).expect("the device keeps the rules");
    let frame = got.expect("it arrives").frame;
    assert_eq!(payload_of(&frame).expect("a sound frame"), payload);
}

fn not_granted(lasthop: &Lasthop, port: &str) -> u64 {
    lasthop.stats().get(&format!("{port}.drops.not-granted"))
}

/// Checks that one frame more of vm1 was dropped because its buffer is not mapped.
fn one_is_refused(lasthop: &Lasthop, before: u64) {
    wait_until("it is counted", || not_granted(lasthop, "vm1") > before);
    assert_eq!(not_granted(lasthop, "vm1"), before + 1);
}

/// Throws away what is still on its way between two guests: frames of one sender keep their order.
fn settle_down(a: &mut FakeGuest, b: &mut FakeGuest, flow: Flow) {
    last_arrives(a, b, flow);
    last_arrives(b, a, flow.reversed());
}

fn last_arrives(from: &mut FakeGuest, to: &mut FakeGuest, flow: Flow) {
    let mut n = 0u32;
    wait_until("a frame arrives that is the last", || {
        n += 1;
        let last = [&b"last"[..], &n.to_le_bytes()].concat();
        from.send(&udp(&flow, &last)).expect("room");
        let pause = Duration::from_millis(100);
        let mut next = || to.recv(pause).expect("the device keeps the rules");
        std::iter::from_fn(&mut next).any(|got| payload_of(&got.frame) == Ok(&last))
    });
}
