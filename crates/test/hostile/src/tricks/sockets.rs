//! Tricks with connections.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use super::super::arena::{Arena, dial};
use super::super::files::all;
use testkit::GuestConfig;
use testkit::frontend::{FLAG_NEED_REPLY, VERSION, request};

pub(super) fn connect_flood(arena: &Arena<'_>) {
    arena.crew(2, |index| {
        while arena.on() {
            let Some(mut front) = arena.dial() else {
                continue;
            };
            if index == 0 {
                let _ = front.get_features();
            }
            arena.step();
        }
    });
}

/// Many connections to the ports that a guest has already.
pub(super) fn second(arena: &Arena<'_>) {
    for guest in arena.guests(GuestConfig::default()) {
        for _ in 0..20 {
            let all = arena.ports().iter().filter_map(|path| dial(path).ok());
            let held: Vec<_> = all.collect();
            (0..held.len()).for_each(|_| arena.step());
            std::thread::sleep(Duration::from_millis(2));
            if !arena.on() {
                break;
            }
        }
        drop(guest);
    }
}

fn header(code: u32, size: u32) -> Vec<u8> {
    [code, VERSION | FLAG_NEED_REPLY, size]
        .map(u32::to_le_bytes)
        .concat()
}

/// Messages that promise a body which never comes, with as many descriptors as fit.
pub(super) fn half(arena: &Arena<'_>) {
    while arena.on() {
        let files = all();
        let borrowed: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
        let mut held = Vec::new();
        for (index, _) in arena.ports().iter().enumerate() {
            let Some(front) = arena.dial() else { continue };
            let bytes = header(request::SET_MEM_TABLE, 0x1000);
            let cut = [12, 11, 1, 8][index % 4];
            let _ = front.send_bytes(&bytes[..cut], &borrowed[..borrowed.len().min(8)]);
            held.push(front);
            arena.step();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(super) fn dripped(arena: &Arena<'_>) {
    while arena.on() {
        let fronts: Vec<_> = arena.ports().iter().filter_map(|_| arena.dial()).collect();
        let bytes = [header(request::SET_FEATURES, 8), vec![0; 8]].concat();
        for byte in &bytes {
            for front in &fronts {
                let _ = front.send_bytes(&[*byte], &[]);
                arena.step();
            }
            std::thread::sleep(Duration::from_millis(1));
            if !arena.on() {
                return;
            }
        }
    }
}

/// Asks without reading until the socket takes no more.
pub(super) fn unread(arena: &Arena<'_>) {
    while arena.on() {
        let Some(front) = arena.dial() else { continue };
        let _ = front
            .socket()
            .set_write_timeout(Some(Duration::from_millis(50)));
        let asks = header(request::GET_FEATURES, 0).repeat(64);
        while arena.on() && front.send_bytes(&asks, &[]).is_ok() {
            arena.step();
        }
    }
}
