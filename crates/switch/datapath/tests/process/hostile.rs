//! Guests that break the rules: the queue stops with a reason, no other port is affected, and a
//! reset of the device restores it.

use ipc::switching::PortPhase;
use testkit::driver::{
    DESC_INDIRECT, DESC_NEXT, DESC_WRITE, DriverQueue, PackedDesc, RawDesc, SplitDesc,
};
use testkit::features::MRG_RXBUF;
use testkit::guest_ram::GuestRam;
use testkit::{FakeGuest, GuestConfig};

use crate::host::Host;
use crate::traffic::{one_way, talk};

/// One bad chain, put into a transmit queue of either layout.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// A part of the reason.
    pub(crate) reason: &'static str,
    /// For split rings, packed rings, or both.
    layouts: &'static [bool],
    put: fn(&GuestRam, &mut DriverQueue),
}

type MakeChain = fn(&GuestRam) -> Vec<RawDesc>;

const SPLIT: &[bool] = &[false];
const PACKED: &[bool] = &[true];
const BOTH: &[bool] = &[false, true];

fn desc(gpa: u64, len: u32, flags: u16) -> RawDesc {
    RawDesc { gpa, len, flags }
}

fn raw(queue: &mut DriverQueue, descs: &[RawDesc]) -> u16 {
    let id = queue.add_raw(descs, 0).expect("room");
    queue.publish();
    id
}

/// A buffer of guest memory.
fn buffer(ram: &GuestRam, len: u64) -> u64 {
    ram.alloc(len, 16)
}

/// The end of the guest's memory.
fn end(ram: &GuestRam) -> u64 {
    let spec = ram.regions().last().expect("a region").spec();
    spec.gpa + spec.size
}

/// An indirect table of `descs`, which are chained.
fn table(ram: &GuestRam, packed: bool, descs: &[RawDesc]) -> u64 {
    let at = buffer(ram, 16 * descs.len() as u64);
    for (i, d) in descs.iter().enumerate() {
        let bytes = if packed {
            PackedDesc {
                gpa: d.gpa,
                len: d.len,
                id: 0,
                flags: d.flags,
            }
            .to_bytes()
        } else {
            SplitDesc {
                gpa: d.gpa,
                len: d.len,
                flags: d.flags,
                next: i as u16 + 1,
            }
            .to_bytes()
        };
        ram.write(at + 16 * i as u64, &bytes);
    }
    at
}

pub(crate) fn attacks() -> Vec<Attack> {
    let attack = |name, reason, layouts, put| Attack {
        name,
        reason,
        layouts,
        put,
    };
    vec![
        attack("loop", "loop", SPLIT, |ram, queue| {
            let at = buffer(ram, 4096);
            let head = queue
                .add_raw(&[desc(at, 100, DESC_NEXT), desc(at, 100, 0)], 0)
                .expect("room");
            let second = queue.peek_desc(head).next;
            queue.poke_desc(
                second,
                SplitDesc {
                    gpa: at,
                    len: 100,
                    flags: DESC_NEXT,
                    next: head,
                },
            );
            queue.publish();
        }),
        attack("endless packed chain", "", PACKED, |ram, queue| {
            let at = buffer(ram, 4096);
            let all = vec![desc(at, 1, DESC_NEXT); usize::from(queue.free())];
            raw(queue, &all);
        }),
        attack("too many bytes", "too many bytes", BOTH, |ram, queue| {
            let at = buffer(ram, 1 << 20);
            let piece = |flags| desc(at, 1 << 20, flags);
            raw(queue, &[piece(DESC_NEXT), piece(DESC_NEXT), piece(0)]);
        }),
        attack("length overflow", "too many bytes", BOTH, |ram, queue| {
            let at = buffer(ram, 4096);
            raw(queue, &[desc(at, u32::MAX, 0)]);
        }),
        attack("address overflow", "not mapped", BOTH, |_, queue| {
            raw(queue, &[desc(u64::MAX - 50, 100, 0)]);
        }),
        attack("unmapped address", "not mapped", BOTH, |ram, queue| {
            raw(queue, &[desc(end(ram) + 4096, 100, 0)]);
        }),
        attack(
            "across the end of memory",
            "not mapped",
            BOTH,
            |ram, queue| {
                raw(queue, &[desc(end(ram) - 50, 100, 0)]);
            },
        ),
        attack(
            "into the hole between regions",
            "not mapped",
            BOTH,
            |ram, queue| {
                let first = ram.regions()[0].spec();
                raw(queue, &[desc(first.gpa + first.size - 50, 100, 0)]);
            },
        ),
        attack("zero length", "zero length", BOTH, |ram, queue| {
            let at = buffer(ram, 4096);
            raw(queue, &[desc(at, 100, DESC_NEXT), desc(at, 0, 0)]);
        }),
        attack(
            "too short for its header",
            "too short",
            BOTH,
            |ram, queue| {
                let at = buffer(ram, 4096);
                raw(queue, &[desc(at, 11, 0)]);
            },
        ),
        attack(
            "too short for its header in pieces",
            "too short",
            BOTH,
            |ram, queue| {
                let at = buffer(ram, 4096);
                let piece = |flags| desc(at, 3, flags);
                raw(queue, &[piece(DESC_NEXT), piece(DESC_NEXT), piece(0)]);
            },
        ),
        attack("writable", "writable", BOTH, |ram, queue| {
            let at = buffer(ram, 4096);
            raw(queue, &[desc(at, 100, DESC_WRITE)]);
        }),
        attack("index jump", "jump", SPLIT, |_, queue| {
            let size = queue.options().size;
            queue.poke_avail_idx(queue.peek_avail_idx().wrapping_add(size + 1));
        }),
        attack("head out of range", "head", SPLIT, |_, queue| {
            let at = queue.peek_avail_idx();
            queue.poke_avail_ring(at, queue.options().size);
            queue.poke_avail_idx(at.wrapping_add(1));
        }),
        attack("next out of range", "next", SPLIT, |ram, queue| {
            let at = buffer(ram, 4096);
            let head = queue
                .add_raw(&[desc(at, 100, DESC_NEXT), desc(at, 100, 0)], 0)
                .expect("room");
            let first = queue.peek_desc(head);
            queue.poke_desc(
                head,
                SplitDesc {
                    next: queue.options().size,
                    ..first
                },
            );
            queue.publish();
        }),
        attack(
            "indirect table of a wrong length",
            "wrong length",
            BOTH,
            |ram, queue| {
                let packed = queue.options().layout == testkit::driver::Layout::Packed;
                let at = buffer(ram, 4096);
                let at = table(ram, packed, &[desc(at, 100, 0)]);
                raw(queue, &[desc(at, 17, DESC_INDIRECT)]);
            },
        ),
        attack("indirect table of no length", "", BOTH, |ram, queue| {
            let at = buffer(ram, 4096);
            raw(queue, &[desc(at, 0, DESC_INDIRECT)]);
        }),
        attack(
            "indirect table outside of memory",
            "not mapped",
            BOTH,
            |ram, queue| {
                raw(queue, &[desc(end(ram) + 4096, 32, DESC_INDIRECT)]);
            },
        ),
        attack(
            "indirect table in an indirect table",
            "indirect",
            BOTH,
            |ram, queue| {
                let packed = queue.options().layout == testkit::driver::Layout::Packed;
                let at = buffer(ram, 4096);
                let at = table(ram, packed, &[desc(at, 16, DESC_INDIRECT)]);
                raw(queue, &[desc(at, 16, DESC_INDIRECT)]);
            },
        ),
        attack("loop in an indirect table", "loop", SPLIT, |ram, queue| {
            let at = buffer(ram, 4096);
            let at = table(
                ram,
                false,
                &[desc(at, 100, DESC_NEXT), desc(at, 100, DESC_NEXT)],
            );
            ram.store_u16(at + 30, 0);
            raw(queue, &[desc(at, 32, DESC_INDIRECT)]);
        }),
        attack(
            "next beyond an indirect table",
            "next",
            SPLIT,
            |ram, queue| {
                let at = buffer(ram, 4096);
                let at = table(ram, false, &[desc(at, 100, DESC_NEXT), desc(at, 100, 0)]);
                ram.store_u16(at + 14, 2);
                raw(queue, &[desc(at, 32, DESC_INDIRECT)]);
            },
        ),
    ]
}

fn config(packed: bool) -> GuestConfig {
    let config = GuestConfig::default();
    if packed { config.packed() } else { config }
}

/// Connects a guest and two bystanders.
fn scene(host: &Host, packed: bool) -> (FakeGuest, FakeGuest, FakeGuest) {
    let mut evil = host.guest(1, config(packed));
    let mut b = host.guest(2, config(false));
    let c = host.guest(3, config(true));
    talk(&mut evil, &mut b, 10);
    (evil, b, c)
}

#[test]
fn each_malformed_chain_stops_its_queue_and_nothing_else() {
    let mut host = Host::with_ports([1, 2, 3]);
    for packed in [false, true] {
        let (mut evil, mut b, mut c) = scene(&host, packed);
        for attack in attacks() {
            if !attack.layouts.contains(&packed) {
                continue;
            }
            let ram = evil.ram().clone();
            (attack.put)(&ram, &mut evil.pairs[0].nic.tx);
            evil.pairs[0].tx_kick.signal();
            let fault = host.wait_fault(1, 1);
            assert!(fault.contains(attack.reason), "{}: {fault}", attack.name);
            let state = host.state(1);
            let reason = state.reason.expect("a reason");
            assert!(reason.contains("queue 1"), "{}: {reason}", attack.name);
            // The others are not affected, and it still receives.
            talk(&mut b, &mut c, 10);
            one_way(&mut b, &mut evil, 10);
            evil.reset().expect("a reset");
            evil.wait_link().expect("a link");
            assert_eq!(host.state(1).phase, PortPhase::Up, "{}", attack.name);
            assert_eq!(host.state(1).reason, None, "{}", attack.name);
            talk(&mut evil, &mut b, 10);
        }
        for guest in [&mut evil, &mut b, &mut c] {
            guest.disconnect().expect("a good end");
        }
    }
    let (_, _, drops) = host.totals();
    assert_eq!(drops, 0, "no frame of another port was lost");
}

#[test]
fn frames_before_a_bad_chain_are_delivered() {
    let mut host = Host::with_ports([1, 2, 3]);
    for packed in [false, true] {
        let (mut evil, mut b, mut c) = scene(&host, packed);
        for n in 0..20 {
            let frame = crate::traffic::numbered(1, 2, n, 100);
            assert!(
                evil.pairs[0]
                    .stage(&frame, &Default::default())
                    .expect("sound")
            );
        }
        let ram = evil.ram().clone();
        raw(&mut evil.pairs[0].nic.tx, &[desc(end(&ram), 100, 0)]);
        evil.pairs[0].tx_kick.signal();
        host.wait_fault(1, 1);
        let got = b.recv_count(20, crate::host::LIMIT).expect("all of them");
        assert_eq!(got.len(), 20);
        talk(&mut b, &mut c, 10);
        for guest in [&mut evil, &mut b, &mut c] {
            guest.crash();
        }
        for id in 1..=3 {
            host.wait_phase(id, PortPhase::Waiting);
        }
    }
}

#[test]
fn a_fault_stays_in_the_status_until_the_reset() {
    let mut host = Host::with_ports([1, 2, 3]);
    let (mut evil, mut b, mut c) = scene(&host, false);
    let at = buffer(evil.ram(), 64);
    raw(&mut evil.pairs[0].nic.tx, &[desc(at, 4, 0)]);
    evil.pairs[0].tx_kick.signal();
    host.wait_fault(1, 1);
    // The messages of the front end do not matter meanwhile.
    evil.wait_link().expect("a session");
    evil.front()
        .expect("a session")
        .set_vring_enable(0, true)
        .expect("on");
    let state = host.state(1);
    assert_eq!(state.phase, PortPhase::Faulted);
    let reason = state.reason.expect("a reason");
    assert!(reason.contains("too short"), "{reason}");
    talk(&mut b, &mut c, 10);
    // Another guest on the same port starts clean.
    evil.crash();
    host.wait_phase(1, PortPhase::Waiting);
    let mut good = host.guest(1, config(true));
    assert_eq!(host.state(1).phase, PortPhase::Up);
    talk(&mut good, &mut b, 10);
}

#[test]
fn a_malformed_receive_chain_stops_its_queue_and_nothing_else() {
    let mut host = Host::with_ports([1, 2, 3]);
    let bad: &[(&str, MakeChain)] = &[
        ("too short", |ram| {
            vec![desc(buffer(ram, 64), 11, DESC_WRITE)]
        }),
        ("not mapped", |ram| {
            vec![desc(end(ram) - 8, 2048, DESC_WRITE)]
        }),
        ("readable", |ram| vec![desc(buffer(ram, 64), 64, 0)]),
        ("zero length", |ram| {
            vec![desc(buffer(ram, 64), 0, DESC_WRITE)]
        }),
        ("too many bytes", |ram| {
            let at = buffer(ram, 1 << 20);
            let piece = |flags| desc(at, 1 << 20, flags | DESC_WRITE);
            vec![piece(DESC_NEXT), piece(0)]
        }),
    ];
    for merge in [MRG_RXBUF, 0] {
        for packed in [false, true] {
            let mut b = host.guest(2, config(false));
            let mut c = host.guest(3, config(true));
            for (reason, descs) in bad {
                let mut evil = host.guest(1, config(packed).without(MRG_RXBUF ^ merge));
                talk(&mut evil, &mut b, 10);
                // Two good buffers are taken back and bad ones follow the rest.
                evil.pairs[0].nic.auto_refill = false;
                one_way(&mut b, &mut evil, 2);
                let ram = evil.ram().clone();
                raw(&mut evil.pairs[0].nic.rx, &descs(&ram));
                for n in 0..300 {
                    b.send(&crate::traffic::numbered(2, 1, n, 60))
                        .expect("room");
                }
                let fault = host.wait_fault(1, 0);
                assert!(fault.contains(reason), "{reason}: {fault}");
                talk(&mut b, &mut c, 10);
                evil.crash();
                host.wait_phase(1, PortPhase::Waiting);
            }
            drop((b, c));
            host.wait_phase(2, PortPhase::Waiting);
            host.wait_phase(3, PortPhase::Waiting);
        }
    }
}
