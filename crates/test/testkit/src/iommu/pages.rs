//! Guest-physical pages: scattered, given back, and watched after they were taken from a device.

use std::collections::VecDeque;

use super::{HUGE, PAGE};
use crate::guest_ram::GuestRam;

/// Every other 8 bytes of a watched page.
pub const CANARY: [u8; 8] = *b"\xcaNARY!\xfe\xca";
/// Pages that are watched before the oldest is used again.
const WATCHED: usize = 256;
/// Pages that are taken from guest memory at once, and the distance of one to the next.
const CHUNK: u64 = 8;
const STRIDE: u64 = 5;

/// Returns whether these bytes have anything of a watched page.
#[must_use]
pub fn is_canary(bytes: &[u8]) -> bool {
    bytes.windows(CANARY.len()).any(|window| window == CANARY)
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pages {
    ram: GuestRam,
    scattered: bool,
    free: VecDeque<u64>,
    watched: VecDeque<u64>,
    /// Faults found when a page was used again.
    found: Vec<String>,
}

impl Pages {
    pub(super) fn new(ram: GuestRam, scattered: bool) -> Self {
        Self {
            ram,
            scattered,
            free: VecDeque::new(),
            watched: VecDeque::new(),
            found: Vec::new(),
        }
    }

    /// A page with any content.
    pub(super) fn page(&mut self) -> u64 {
        if self.watched.len() > WATCHED
            && let Some(page) = self.watched.pop_front()
        {
            self.found.extend(self.fault(page));
            return page;
        }
        if self.free.is_empty() {
            let at = self.ram.alloc(CHUNK * PAGE, PAGE);
            let scrambled = (0..CHUNK).map(|n| at + n * STRIDE % CHUNK * PAGE);
            self.free.extend(scrambled);
        }
        self.free.pop_front().expect("pages were just added")
    }

    /// Pages for rings.
    pub(super) fn run(&mut self, count: u64) -> Vec<u64> {
        if self.scattered {
            return (0..count).map(|_| self.page()).collect();
        }
        let at = self.ram.alloc(count * PAGE, PAGE);
        (0..count).map(|n| at + n * PAGE).collect()
    }

    /// A page of [`HUGE`] bytes whose neighbours are not used.
    pub(super) fn huge(&mut self) -> u64 {
        self.ram.alloc(2 * HUGE, HUGE)
    }

    /// Takes a page back that is not to be watched.
    pub(super) fn give(&mut self, page: u64) {
        self.free.push_back(page);
    }

    /// Takes a page back after its device had to let go, and writes the pattern.
    pub(super) fn watch(&mut self, page: u64) {
        self.ram.write(page, &pattern(page));
        self.watched.push_back(page);
    }

    fn fault(&self, page: u64) -> Option<String> {
        let mut bytes = vec![0; PAGE as usize];
        self.ram.read(page, &mut bytes);
        let right = pattern(page);
        let at = (0..bytes.len()).find(|at| bytes[*at] != right[*at])?;
        let end = bytes.len().min(at + 16);
        Some(format!(
            "page {page:#x} was written after INVALIDATE's answer, from byte {at}: {:x?}",
            &bytes[at..end]
        ))
    }

    /// Adds a line for each page that was written; returns how many pages are watched.
    pub(super) fn verify(&mut self, faults: &mut Vec<String>) -> usize {
        faults.append(&mut self.found);
        faults.extend(self.watched.iter().filter_map(|page| self.fault(*page)));
        self.watched.len()
    }
}

fn pattern(page: u64) -> Vec<u8> {
    let pair = [CANARY, page.to_le_bytes()].concat();
    pair.repeat(PAGE as usize / pair.len())
}
