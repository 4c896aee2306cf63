//! Tricks with the state of queues, and with their kick, call and err descriptors.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::super::arena::Arena;
use super::super::files::{any, block, full_event};
use super::super::raw;
use testkit::driver::SplitDesc;
use testkit::frontend::{Event, FrontEnd, FrontError};
use testkit::packets::{BROADCAST, Flow, mac, udp};
use testkit::{FakeGuest, GuestConfig};

fn guests(arena: &Arena<'_>) -> impl Iterator<Item = FakeGuest> {
    arena.guests(GuestConfig::default())
}

/// Gives running queues a call descriptor that blocks once it was checked, and repeats a message.
fn restart_loop(
    arena: &Arena<'_>,
    message: fn(&mut FrontEnd, u32, &Event) -> Result<(), FrontError>,
) {
    arena.crew(3, |_| {
        for mut guest in guests(arena) {
            let (Ok(call), Ok(kick)) = (full_event(), Event::new()) else {
                continue;
            };
            let Ok(front) = guest.front() else { continue };
            for queue in 0..2 {
                let _ = front.set_vring_call(queue, Some(call.as_fd()));
            }
            block(&call);
            for step in 0.. {
                let sent = message(front, step, &kick);
                arena.step();
                if !arena.on() || !raw::can_continue(&sent) {
                    break;
                }
            }
        }
    });
}

pub(super) fn kick_loop(arena: &Arena<'_>) {
    restart_loop(arena, |front, step, kick| {
        front.set_vring_kick(step % 2, Some(kick.as_fd()))
    });
}

pub(super) fn base_loop(arena: &Arena<'_>) {
    restart_loop(arena, |front, step, _| front.set_vring_base(step % 2, 0));
}

pub(super) fn num_loop(arena: &Arena<'_>) {
    restart_loop(arena, |front, step, _| {
        front.set_vring_num(step % 2, [64, 32][step as usize / 2 % 2])
    });
}

pub(super) fn call_blocks(arena: &Arena<'_>) {
    let flow = Flow {
        src_mac: mac(211),
        dst_mac: BROADCAST,
        ..Flow::v4(211, 255)
    };
    let frame = udp(&flow, &[1; 100]);
    for mut guest in guests(arena) {
        let Ok(call) = full_event() else { continue };
        let Ok(front) = guest.front() else { continue };
        let told = front.set_vring_call(0, Some(call.as_fd())).is_ok()
            && front.set_vring_call(1, Some(call.as_fd())).is_ok();
        block(&call);
        // Its driver requests an interrupt for everything.
        guest.pairs[0].nic.tx.set_notifications(true);
        for _ in 0..50 {
            if !told || !arena.on() || guest.send(&frame).is_err() {
                break;
            }
            guest.pairs[0].tx_kick.signal();
            arena.step();
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

pub(super) fn err_blocks(arena: &Arena<'_>) {
    for mut guest in guests(arena) {
        let Ok(err) = full_event() else { continue };
        let Ok(front) = guest.front() else { continue };
        let _ = front.set_vring_err(1, Some(err.as_fd()));
        block(&err);
        for _ in 0..50 {
            let pair = &guest.pairs[0];
            let bad = SplitDesc {
                gpa: u64::MAX - 10,
                len: 100,
                flags: 0,
                next: 0,
            };
            pair.nic.tx.poke_desc(0, bad);
            pair.nic
                .tx
                .poke_avail_idx(pair.nic.tx.peek_avail_idx().wrapping_add(1));
            pair.tx_kick.signal();
            arena.step();
            let Ok(kick) = Event::new() else { break };
            let Ok(front) = guest.front() else { break };
            let again = front.set_vring_kick(1, Some(kick.as_fd()));
            if !arena.on() || !raw::can_continue(&again) {
                break;
            }
        }
    }
}

pub(super) fn restarts(arena: &Arena<'_>) {
    arena.crew(2, |_| {
        for mut guest in guests(arena) {
            while arena.on() && guest.reset().is_ok() {
                arena.step();
            }
        }
    });
}

pub(super) fn toggles(arena: &Arena<'_>) {
    arena.crew(2, |_| {
        for mut guest in guests(arena) {
            let features = guest.features();
            let Ok(front) = guest.front() else { continue };
            for step in 0_u32.. {
                let told = match step % 5 {
                    0 | 1 => front.set_vring_enable(step / 5 % 2, step % 2 == 0),
                    2 => front.set_features(features),
                    3 => front.set_vring_call(step / 5 % 2, None),
                    _ => front.net_set_mtu(u64::from(step)),
                };
                arena.step();
                if !arena.on() || !raw::can_continue(&told) {
                    break;
                }
            }
        }
    });
}

/// Kick descriptors that a poll always finds ready, and whose reading takes nothing away.
pub(super) fn ready_kicks(arena: &Arena<'_>) {
    let kinds: [fn() -> Option<OwnedFd>; 3] = [
        || {
            let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK;
            let event = eventfd(0, flags).ok()?;
            rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).ok()?;
            Some(event)
        },
        || Some(File::open("/dev/zero").ok()?.into()),
        || {
            let (reader, writer) = rustix::pipe::pipe().ok()?;
            drop(writer);
            Some(reader)
        },
    ];
    let mut random = arena.random();
    for kind in kinds.iter().cycle() {
        if !arena.on() {
            return;
        }
        let Some(mut guest) = arena.guest(GuestConfig::default()) else {
            continue;
        };
        let Some(kick) = kind().or_else(|| any(&mut random)) else {
            continue;
        };
        let Ok(front) = guest.front() else { continue };
        for queue in 0..2 {
            let _ = front.set_vring_kick(queue, Some(kick.as_fd()));
        }
        arena.step();
        std::thread::sleep(Duration::from_millis(30));
    }
}

pub(super) fn kick_spin(arena: &Arena<'_>) {
    arena.crew(2, |_| {
        for guest in guests(arena) {
            let pair = &guest.pairs[0];
            for step in 0_u32.. {
                pair.tx_kick.signal();
                pair.rx_kick.signal();
                if step % 1024 == 0 && !arena.on() {
                    break;
                }
                arena.step();
            }
        }
    });
}
