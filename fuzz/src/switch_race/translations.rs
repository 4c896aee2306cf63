//! The front end of a guest with an IOMMU, in the second CPU's thread: it answers questions, and
//! revokes one page after the other.

use std::sync::Arc;

use datapath::ports::calls::PendingCalls;
use datapath::ports::guest::{GuestPort, GuestQueue};
use datapath::ports::queue_lock::{QueueLock, Watch};
use memory::GuestMemory;
use memory::iotlb::{IotlbWriter, Miss, Update};
use testkit::features::RING_PACKED;
use testkit::guest_ram::{GuestRam, RegionSpec};
use testkit::net::{NetOptions, NetPair};
use virtio::queue::QueueMemory;
use wire::virtio::features::Features;

use super::common::queue_in;
use crate::guarded::{Guarded, PAGE};

/// First I/O virtual address: what the driver takes for its memory.
const START: u64 = 0x10_0000;
/// Where that is in the memory of the guest, which no I/O virtual address is equal to.
const GPA: u64 = 0x1_0000_0000;
const USER: u64 = 0x7e00_0000_0000;

/// The table of a guest, and its pages.
pub(super) struct Translations {
    writer: IotlbWriter,
    memory: Arc<GuestMemory>,
    guarded: Guarded,
    /// Show the users of the queues.
    watches: Vec<Watch<GuestQueue>>,
    /// Pages to revoke, one after the other.
    victims: Vec<u64>,
    turn: usize,
    /// The page that is revoked now.
    hole: Option<u64>,
    pages: u64,
}

/// Returns a guest with an IOMMU and so much memory, all of which is granted.
pub(super) fn guest(
    options: NetOptions,
    memory: u64,
) -> (GuestRam, NetPair, GuestPort, Translations) {
    let features = options.features;
    let ram = GuestRam::memfd(&[RegionSpec::at(START, memory)]).expect("memory");
    let file = ram.regions()[0].fd().expect("a file");
    let file = file.try_clone_to_owned().expect("a descriptor");
    let guarded = Guarded::map(&file, GPA, USER, memory, 1);
    let mem = GuestMemory::new(guarded.regions().to_vec(), None).expect("one region");
    let mut translations = Translations {
        writer: IotlbWriter::heap(),
        memory: Arc::new(mem),
        guarded,
        watches: Vec::new(),
        victims: Vec::new(),
        turn: 0,
        hole: None,
        pages: memory / PAGE,
    };
    (0..memory / PAGE).for_each(|page| translations.grant(page, None));
    let mut nic = NetPair::new(&ram, options);
    nic.offer();
    let mut port = GuestPort::new(None);
    let position = if features & RING_PACKED != 0 {
        0x8000_8000
    } else {
        0
    };
    for (index, driver) in [(0u16, &nic.rx), (1, &nic.tx)] {
        let memory = QueueMemory {
            memory: Arc::clone(&translations.memory),
            iotlb: Some(Arc::clone(translations.writer.table())),
        };
        let mut queue = QueueLock::new(queue_in(&ram, memory, driver, features, position));
        queue.with(|queue| queue.begin(index == 0, &mut PendingCalls::default()));
        translations.watches.push(queue.watch());
        port.start(index, queue, Features::from_bits_truncate(features));
    }
    (ram, nic, port, translations)
}

impl Translations {
    /// Sets the addresses whose pages are revoked in turn.
    pub(super) fn revoke_in_turn(&mut self, addresses: impl Iterator<Item = u64>) {
        let pages = addresses.map(|addr| addr.wrapping_sub(START) / PAGE % self.pages);
        self.victims = pages.collect();
    }

    /// Grants a page of the memory, which can be reached from then on.
    fn grant(&mut self, page: u64, asked: Option<Miss>) {
        let update = Update {
            iova: START + page * PAGE,
            size: PAGE,
            user_addr: USER + page * PAGE,
            permission: 3,
        };
        self.guarded.permit(page as usize, 3);
        let entered = self.writer.update(&self.memory, &update, asked.as_slice());
        entered.expect("the guest's own memory");
    }

    /// Revokes a page, as before the answer to an INVALIDATE.
    fn revoke(&mut self, page: u64) {
        let revoked = self.writer.invalidate(START + page * PAGE, PAGE);
        revoked.expect("not empty");
        for hold in self.watches.iter().filter_map(Watch::holder) {
            hold.wait();
        }
        self.guarded.permit(page as usize, 0);
    }

    /// Answers questions, and has the next page revoked instead of the present one.
    pub(super) fn turn(&mut self) {
        let table = Arc::clone(self.writer.table());
        table.misses().take_some(|miss, need| {
            let page = miss.iova().wrapping_sub(START) / PAGE;
            if page < self.pages && self.hole != Some(page) {
                self.grant(page, Some(miss));
            } else {
                self.writer.deny(miss, need);
            }
            true
        });
        let Some(victim) = self.victims.get(self.turn % self.victims.len().max(1)) else {
            return;
        };
        let victim = *victim;
        self.turn += 1;
        // Every other page has to be asked for again.
        if let Some(page) = self.hole.take()
            && self.turn.is_multiple_of(2)
        {
            self.grant(page, None);
        }
        self.revoke(victim);
        self.hole = Some(victim);
    }
}
