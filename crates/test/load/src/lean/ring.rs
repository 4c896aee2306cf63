//! Interface of a ring, whatever its layout.

use super::LeanError;
use testkit::driver::QueueAddrs;
use testkit::guest_ram::GuestRam;

/// Equal buffers, one for each entry of a ring, which buffer `n` is `n` strides into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    /// Guest-physical address of the first.
    pub(super) gpa: u64,
    /// Bytes from one to the next.
    pub(super) stride: u32,
    /// Buffer `n` begins `n & spread` cache lines behind its stride's begin.
    pub(super) spread: u16,
    /// Bytes of each.
    pub(super) len: u32,
}

impl Buffers {
    pub(super) fn at(&self, id: u16) -> u64 {
        let lines = u64::from(id & self.spread);
        self.gpa + u64::from(id) * u64::from(self.stride) + 64 * lines
    }
}

/// Parameters of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingOptions {
    /// Entries, a power of two.
    pub(super) size: u16,
    /// The device writes the buffers.
    pub(super) writable: bool,
    /// IN_ORDER was agreed on.
    pub(super) in_order: bool,
    /// EVENT_IDX was agreed on.
    pub(super) event_index: bool,
}

/// The driver's half of a ring in which every buffer takes one descriptor and is offered again
/// where the device returned it.
pub(super) trait Ring: Sized + Send {
    /// Device half of the ring.
    type Device: super::null::Device;

    /// A ring with all buffers described and none offered.
    fn new(ram: &GuestRam, buffers: Buffers, options: RingOptions) -> Self;

    /// Returns its addresses.
    fn addrs(&self) -> QueueAddrs;

    /// Entries.
    fn size(&self) -> u16;

    /// The base of the unused ring for SET_VRING_BASE.
    const FIRST_BASE: u32;

    /// The layout itself has event indices, whatever features were agreed on.
    const EVENT_INDEX: bool = false;

    /// The other half, for the null back end.
    fn device(&self) -> Self::Device;

    /// Entries that can be offered.
    fn free(&self) -> u16;

    /// Buffer in the entry `ahead` of the next one to be offered; `ahead` is less than `free`.
    fn buffer(&self, ahead: u16) -> u16;

    /// Offers the next `n` buffers, at most `free`.
    fn offer(&mut self, n: u16);

    /// Takes back what the device used: buffer and bytes written of each; returns how many.
    fn take(&mut self, each: impl FnMut(u16, u32)) -> Result<u16, LeanError>;

    /// Takes back without looking at what was written.
    fn reclaim(&mut self) -> Result<u16, LeanError>;

    /// Returns whether the device asks for a kick now; with an event index: for what was offered
    /// since the last call.
    fn wants_kick(&mut self) -> bool;
}
