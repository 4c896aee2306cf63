//! Queues that are not inlined into the paths of all queues: slot queues of either format, and
//! queues of guests with an IOMMU. Where the compiler would spend registers on them there, they are
//! marked as cold: the code of the other virtqueues does not grow by them, and a call a batch is
//! little.

use std::sync::Arc;

use memory::{GuestMemory, Segment};

use super::slots::memif::Memif;
use super::slots::netmap::Netmap;
use super::slots::{SlotFormat, SlotQueue};
use super::translated::TranslatedQueue;
use super::{Chain, ChainBatch, Fill, Layout, Limit, QueueFault, Ring};

/// A queue that is not inlined. Its tag is a field of its own: one that the compiler hid in a
/// variant would take more instructions in each call.
#[derive(Debug)]
#[repr(u8)]
pub enum OutlinedQueue {
    /// The slots of a netmap client.
    Netmap(SlotQueue<Netmap>),
    /// The descriptors of a memif client.
    Memif(SlotQueue<Memif>),
    /// A virtqueue of either layout, of a guest with an IOMMU.
    Translated(Box<TranslatedQueue>),
}

/// Calls the same method of any of them.
macro_rules! any {
    ($queue:expr, $q:ident => $call:expr) => {
        match $queue {
            OutlinedQueue::Netmap($q) => $call,
            OutlinedQueue::Memif($q) => $call,
            OutlinedQueue::Translated($q) => $call,
        }
    };
}

/// Methods that pass a call on.
macro_rules! pass_on {
    ($(fn $name:ident(&self $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        $(
            #[inline(never)]
            pub(super) fn $name(&self $(, $arg: $kind)*) $(-> $result)? {
                any!(self, queue => queue.$name($($arg),*))
            }
        )*
    };
    (mut $(fn $name:ident(&mut self $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        $(
            #[inline(never)]
            pub(super) fn $name(&mut self $(, $arg: $kind)*) $(-> $result)? {
                any!(self, queue => queue.$name($($arg),*))
            }
        )*
    };
}

impl OutlinedQueue {
    pub(super) fn new(
        mem: Arc<GuestMemory>,
        layout: Layout,
        format: SlotFormat,
    ) -> Result<Self, QueueFault> {
        match format {
            SlotFormat::Netmap => SlotQueue::new(mem, layout).map(Self::Netmap),
            SlotFormat::Memif { .. } => SlotQueue::new(mem, layout).map(Self::Memif),
        }
    }

    pub(super) fn memory(&self) -> &Arc<GuestMemory> {
        any!(self, queue => queue.memory())
    }

    pass_on! {
        fn size(&self) -> u16;
        fn unnotified(&self) -> u32;
        fn position(&self) -> u32;
    }

    pass_on! { mut
        fn set_memory(&mut self, mem: Arc<GuestMemory>) -> Result<(), QueueFault>;
        fn untake(&mut self, chains: &[Chain]);
        fn publish(&mut self);
        fn wants_notify(&mut self) -> bool;
        fn waiting(&mut self) -> bool;
        fn needs_notify(&mut self) -> bool;
        fn set_kicks(&mut self, on: bool) -> bool;
        fn set_kick_threshold(&mut self, slots: u16) -> Option<bool>;
    }

    /// Takes chains as [`Queue::take_all_readable`](crate::queue::Queue::take_all_readable) does.
    #[inline(always)]
    pub(super) fn take_many<const WRITABLE: bool>(
        &mut self,
        mut into: ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        if WRITABLE {
            self.take_writable(&mut into, limit, prefetch)
        } else {
            self.take_all::<false>(&mut into, limit, prefetch)
        }
    }

    #[cold]
    fn take_writable(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        self.take_all::<true>(into, limit, prefetch)
    }

    /// Stages chains as [`Queue::put_filled`](crate::queue::Queue::put_filled) does.
    #[cold]
    pub(super) fn fill<F: Fill>(&mut self, chains: &[Chain], fill: F) -> (usize, F) {
        any!(self, queue => queue.fill(chains, fill))
    }

    /// A slot is written where it was fetched: its line is here.
    #[inline(always)]
    pub(super) fn expect_used(&mut self, count: u16) {
        if let Self::Translated(queue) = self {
            queue.expect_used(count);
        }
    }

    /// Returns the bytes of each frame's header, of a slot queue.
    pub(super) fn header(&self) -> Option<u32> {
        match self {
            Self::Netmap(queue) => Some(queue.header()),
            Self::Memif(queue) => Some(queue.header()),
            Self::Translated(_) => None,
        }
    }

    /// Returns the number of available chains, or the size if any is.
    pub(super) fn available(&mut self) -> u16 {
        if let Self::Translated(queue) = self {
            return queue.available();
        }
        if self.waiting() { self.size() } else { 0 }
    }
}

impl Ring for OutlinedQueue {
    #[inline(never)]
    fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        any!(self, queue => queue.take::<WRITABLE>(segs))
    }

    #[inline(never)]
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit {
        any!(self, queue => queue.take_plain::<WRITABLE>(into, limit, prefetch))
    }

    #[inline(never)]
    fn put(&mut self, chain: Chain, written: u32) {
        any!(self, queue => queue.put(chain, written));
    }

    #[inline(never)]
    fn put_for_all(&mut self, chains: &[Chain], last: Chain) {
        any!(self, queue => queue.put_for_all(chains, last));
    }

    fn in_order(&self) -> bool {
        any!(self, queue => queue.in_order())
    }

    fn fault(&self) -> Option<QueueFault> {
        any!(self, queue => queue.fault())
    }

    #[inline(never)]
    fn take_all<const WRITABLE: bool>(
        &mut self,
        into: &mut ChainBatch<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        any!(self, queue => queue.take_many::<WRITABLE>(into, limit, prefetch))
    }

    #[inline(never)]
    fn put_read(&mut self, chains: &[Chain]) {
        any!(self, queue => queue.put_read(chains));
    }
}
