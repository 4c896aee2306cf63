//! A slot queue of either format.
//!
//! Nothing of it is inlined into the paths that all layouts share, and where the compiler would
//! spend registers on it there, it is marked as cold: the code of virtqueues does not grow by it,
//! and a call a batch is little.

use std::sync::Arc;

use memory::{GuestMemory, Segment};

use super::memif::Memif;
use super::netmap::Netmap;
use super::{SlotFormat, SlotQueue};
use crate::queue::{Chain, Fill, Layout, Limit, QueueFault, Ring, Taken};

/// A slot queue of either format.
#[derive(Debug)]
pub enum Slots {
    /// The slots of a netmap client.
    Netmap(SlotQueue<Netmap>),
    /// The descriptors of a memif client.
    Memif(SlotQueue<Memif>),
}

/// Calls the same method of either format.
macro_rules! either {
    ($slots:expr, $q:ident => $call:expr) => {
        match $slots {
            Slots::Netmap($q) => $call,
            Slots::Memif($q) => $call,
        }
    };
}

/// Methods that pass a call on to either format.
macro_rules! pass_on {
    ($(fn $name:ident(&self $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        $(
            #[inline(never)]
            pub(in crate::queue) fn $name(&self $(, $arg: $kind)*) $(-> $result)? {
                either!(self, queue => queue.$name($($arg),*))
            }
        )*
    };
    (mut $(fn $name:ident(&mut self $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        $(
            #[inline(never)]
            pub(in crate::queue) fn $name(&mut self $(, $arg: $kind)*) $(-> $result)? {
                either!(self, queue => queue.$name($($arg),*))
            }
        )*
    };
}

impl Slots {
    pub(in crate::queue) fn new(
        mem: Arc<GuestMemory>,
        layout: Layout,
        format: SlotFormat,
    ) -> Result<Self, QueueFault> {
        match format {
            SlotFormat::Netmap => SlotQueue::new(mem, layout).map(Self::Netmap),
            SlotFormat::Memif { .. } => SlotQueue::new(mem, layout).map(Self::Memif),
        }
    }

    pub(in crate::queue) fn memory(&self) -> &Arc<GuestMemory> {
        either!(self, queue => queue.memory())
    }

    pass_on! {
        fn size(&self) -> u16;
        fn header(&self) -> u32;
        fn unnotified(&self) -> u32;
        fn wants_notify(&self) -> bool;
        fn waiting(&self) -> bool;
        fn position(&self) -> u32;
    }

    pass_on! { mut
        fn set_memory(&mut self, mem: Arc<GuestMemory>) -> Result<(), QueueFault>;
        fn untake(&mut self, chains: &[Chain]);
        fn publish(&mut self);
        fn needs_notify(&mut self) -> bool;
        fn set_kicks(&mut self, on: bool) -> bool;
        fn set_kick_threshold(&mut self, slots: u16) -> Option<bool>;
    }

    /// Takes chains as [`Queue::take_all_readable`](crate::queue::Queue::take_all_readable) does.
    #[inline(always)]
    pub(in crate::queue) fn take_many<const WRITABLE: bool>(
        &mut self,
        mut into: Taken<'_>,
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
        into: &mut Taken<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        either!(self, queue => queue.take_all::<true>(into, limit, prefetch))
    }

    /// Stages chains as [`Queue::put_filled`](crate::queue::Queue::put_filled) does.
    #[cold]
    pub(in crate::queue) fn fill<F: Fill>(&mut self, chains: &[Chain], mut fill: F) -> (usize, F) {
        let count = either!(self, queue => queue.put_filled(chains, &mut fill));
        (count, fill)
    }

    /// A slot is written where it was fetched: its line is here.
    #[inline(always)]
    pub(in crate::queue) fn expect_used(&self, _count: u16) {}
}

impl Ring for Slots {
    #[inline(never)]
    fn take<const WRITABLE: bool>(
        &mut self,
        segs: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, QueueFault> {
        either!(self, queue => queue.take::<WRITABLE>(segs))
    }

    #[inline(never)]
    fn take_plain<const WRITABLE: bool>(
        &mut self,
        into: &mut Taken<'_>,
        limit: Limit,
        prefetch: &impl Fn(&Segment),
    ) -> Limit {
        either!(self, queue => queue.take_plain::<WRITABLE>(into, limit, prefetch))
    }

    #[inline(never)]
    fn put(&mut self, chain: Chain, written: u32) {
        either!(self, queue => queue.put(chain, written));
    }

    #[inline(never)]
    fn put_for_all(&mut self, chains: &[Chain], last: Chain) {
        either!(self, queue => queue.put_for_all(chains, last));
    }

    fn in_order(&self) -> bool {
        true
    }

    fn fault(&self) -> Option<QueueFault> {
        either!(self, queue => queue.fault())
    }

    #[inline(never)]
    fn take_all<const WRITABLE: bool>(
        &mut self,
        into: &mut Taken<'_>,
        limit: Limit,
        prefetch: impl Fn(&Segment),
    ) -> Result<(), QueueFault> {
        either!(self, queue => queue.take_all::<WRITABLE>(into, limit, prefetch))
    }

    #[inline(never)]
    fn put_read(&mut self, chains: &[Chain]) {
        either!(self, queue => queue.put_read(chains));
    }
}
