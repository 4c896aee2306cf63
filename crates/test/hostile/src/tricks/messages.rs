//! Tricks with messages and what is attached to them.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use super::super::arena::{Arena, Random};
use super::super::files::{all, any};
use super::super::raw;
use testkit::GuestConfig;
use testkit::driver::SplitDesc;
use testkit::frontend::{FrontEnd, FrontError, Inflight, VERSION, request};
use testkit::packets::mac;

/// Requests that take a file.
const WITH_FILES: [u32; 10] = [
    request::SET_MEM_TABLE,
    request::SET_LOG_BASE,
    request::SET_LOG_FD,
    request::SET_VRING_KICK,
    request::SET_VRING_CALL,
    request::SET_VRING_ERR,
    request::SET_BACKEND_REQ_FD,
    request::SET_INFLIGHT_FD,
    request::ADD_MEM_REG,
    request::IOTLB_MSG,
];

fn some_files(random: &mut Random) -> Vec<OwnedFd> {
    let count = random.below(10).saturating_sub(4);
    (0..count).filter_map(|_| any(random)).collect()
}

/// Reads pending replies, so that the back end can continue.
fn read_away(front: &FrontEnd) {
    use std::io::Read as _;
    let _ = front.socket().set_nonblocking(true);
    let mut bytes = [0; 4096];
    while front.socket().read(&mut bytes).is_ok_and(|n| n > 0) {}
    let _ = front.socket().set_nonblocking(false);
}

pub(super) fn random(arena: &Arena<'_>) {
    let mut random = arena.random();
    while arena.on() {
        let Some(front) = arena.dial() else { continue };
        for _ in 0..20 {
            let files = some_files(&mut random);
            let borrowed: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
            let len = random.below(300) as usize + 1;
            let body = random.bytes(len);
            let code = random.below(45) as u32;
            let flags = if random.below(4) == 0 {
                random.next() as u32
            } else {
                VERSION
            };
            let size = if random.below(4) == 0 {
                random.number() as u32
            } else {
                len as u32
            };
            let sent = match random.below(5) {
                0 => front.send_bytes(&body, &borrowed),
                _ => front.send_raw(code, flags, size, &body, &borrowed),
            };
            arena.step();
            read_away(&front);
            if sent.is_err() || !arena.on() {
                break;
            }
        }
    }
}

/// Bodies of the sizes that the specification has.
fn shaped_body(code: u32, random: &mut Random) -> Vec<u8> {
    let words = match code {
        request::SET_VRING_NUM
        | request::SET_VRING_BASE
        | request::SET_VRING_ENABLE
        | request::GET_VRING_BASE => {
            let state = [random.below(4) as u32, random.number() as u32];
            return state.map(u32::to_le_bytes).concat();
        }
        request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
            return (random.below(4) | random.below(2) << 8)
                .to_le_bytes()
                .to_vec();
        }
        request::SET_VRING_ADDR => 5,
        request::SET_MEM_TABLE => {
            let count = random.below(9);
            let mut body = count.to_le_bytes().to_vec();
            (0..4 * count).for_each(|_| body.extend(random.number().to_le_bytes()));
            return body;
        }
        request::ADD_MEM_REG | request::REM_MEM_REG => 5,
        request::SET_LOG_BASE => 2,
        request::GET_INFLIGHT_FD | request::SET_INFLIGHT_FD => 3,
        request::SET_FEATURES
        | request::SET_PROTOCOL_FEATURES
        | request::SEND_RARP
        | request::NET_SET_MTU
        | request::SET_STATUS => 1,
        _ => 0,
    };
    (0..words)
        .flat_map(|_| random.number().to_le_bytes())
        .collect()
}

pub(super) fn shaped(arena: &Arena<'_>) {
    let mut random = arena.random();
    while arena.on() {
        let front = match random.below(2) {
            0 => arena.front(),
            _ => arena
                .guest(GuestConfig::default())
                .and_then(|guest| guest.into_parts().0),
        };
        let Some(front) = front else { continue };
        for _ in 0..40 {
            let code = random.below(42) as u32;
            let body = shaped_body(code, &mut random);
            let files = if WITH_FILES.contains(&code) {
                any(&mut random).into_iter().collect()
            } else {
                Vec::new()
            };
            let borrowed: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
            let sent = front.send_raw(code, VERSION, body.len() as u32, &body, &borrowed);
            arena.step();
            read_away(&front);
            if sent.is_err() || !arena.on() {
                break;
            }
        }
    }
}

pub(super) fn any_file(arena: &Arena<'_>) {
    let mut random = arena.random();
    for code in WITH_FILES.into_iter().cycle() {
        for file in all() {
            if !arena.on() {
                return;
            }
            let Some(guest) = arena.guest(GuestConfig::default()) else {
                continue;
            };
            let (Some(mut front), pairs) = guest.into_parts() else {
                continue;
            };
            let body = shaped_body(code, &mut random);
            let _ = front.tell(code, &body, &[file.as_fd()]);
            pairs.iter().for_each(|pair| pair.tx_kick.signal());
            arena.step();
        }
    }
}

pub(super) fn rarp_flood(arena: &Arena<'_>) {
    arena.crew(2, |_| {
        for mut guest in arena.guests(GuestConfig::default()) {
            let Ok(front) = guest.front() else { continue };
            front.acknowledge = false;
            while arena.on() && front.send_rarp(mac(212)).is_ok() {
                arena.step();
            }
        }
    });
}

pub(super) fn inflight(arena: &Arena<'_>) {
    let mut random = arena.random();
    for mut front in arena.fronts() {
        for _ in 0..100 {
            let result = one_inflight(&mut front, &mut random);
            arena.step();
            if !arena.on() || !raw::can_continue(&result) {
                break;
            }
        }
    }
}

fn one_inflight(front: &mut FrontEnd, random: &mut Random) -> Result<(), FrontError> {
    if random.below(4) > 0 {
        let got = front.get_inflight(random.below(4) as u16, 1 << random.below(11))?;
        return front.set_inflight(&got);
    }
    let Some(fd) = any(random) else { return Ok(()) };
    front.set_inflight(&Inflight {
        size: random.number(),
        offset: random.number(),
        queues: random.next() as u16,
        queue_size: random.next() as u16,
        fd,
    })
}

pub(super) fn backend_channel(arena: &Arena<'_>) {
    let mut random = arena.random();
    for mut front in arena.fronts() {
        let Ok((_held, theirs)) = UnixStream::pair() else {
            continue;
        };
        for _ in 0..50 {
            let file = match random.below(3) {
                0 => any(&mut random),
                _ => theirs.try_clone().ok().map(OwnedFd::from),
            };
            let Some(file) = file else { continue };
            let told = front.tell(request::SET_BACKEND_REQ_FD, &[], &[file.as_fd()]);
            arena.step();
            if !arena.on() || !raw::can_continue(&told) {
                break;
            }
        }
    }
}

/// Causes log lines: faults of queues, bad messages, connections.
pub(super) fn log_lines(arena: &Arena<'_>) {
    for step in 0_u32.. {
        if !arena.on() {
            return;
        }
        if step % 3 == 0 {
            let Some(front) = arena.dial() else { continue };
            let _ = front.send_raw(9999, VERSION, 0, &[], &[]);
        } else if let Some(guest) = arena.guest(GuestConfig::default()) {
            let pair = &guest.pairs[0];
            let bad = SplitDesc {
                gpa: u64::MAX,
                len: u32::MAX,
                flags: 0,
                next: 0,
            };
            pair.nic.tx.poke_desc(0, bad);
            pair.nic
                .tx
                .poke_avail_idx(pair.nic.tx.peek_avail_idx().wrapping_add(1));
            pair.tx_kick.signal();
        }
        arena.step();
    }
}
