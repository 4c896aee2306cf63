//! A guest's IOMMU and the VMM that models it: the front end of a port whose descriptors carry I/O
//! virtual addresses (IOVA).
//!
//! ```text
//!  driver's address --view--> guest-physical page <--table-- IOVA      (what UPDATE says)
//!        0x6000...              scattered                  used again at once, or never
//! ```
//! The driver sees its memory through a [view](GuestRam::alloc) in which it is contiguous, as a
//! kernel does; the pages lie scattered in guest memory. A buffer is the device's from
//! [`GuestRam::map`] to [`GuestRam::unmap`], rings and indirect tables always. After `unmap` the
//! buffer gets other pages, and the old ones are *watched*: the owner writes a pattern into them
//! once INVALIDATE was answered, and [`Iommu::verify`] finds every page that was written later.
//!
//! [`Mode`] says when the back end learns of mappings; [`Lie`] how its questions are answered, if
//! not as they should be. Questions (MISS) are answered by a thread.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::frontend::{FrontEnd, FrontError};
use crate::guest_ram::GuestRam;

mod channel;
mod iovas;
mod mappings;
mod pages;
mod session;
mod view;

#[cfg(test)]
mod tests;

pub use channel::Lie;
pub use iovas::Iovas;
pub use pages::{CANARY, is_canary};

use channel::Questions;
use iovas::Space;
use mappings::Mapping;
use pages::Pages;
use session::Session;
use view::View;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a huge page.
pub const HUGE: u64 = 2 << 20;

/// Access of a device to a page; the values are those of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Access {
    /// Reads.
    Read = 1,
    /// Writes.
    Write = 2,
    /// Both.
    Both = 3,
}

impl Access {
    /// Returns whether a device gets what it asks for.
    fn permits(self, asked: u8, answers: Answers) -> bool {
        let least = match (answers, asked) {
            (Answers::Qemu, 3) => Self::Write as u8,
            _ => asked,
        };
        self as u8 & least == least
    }
}

impl Answers {
    fn perm(self, access: Access) -> u8 {
        match self {
            Self::Exact => access as u8,
            Self::Qemu => Access::Both as u8,
        }
    }
}

/// When buffers are mapped and unmapped, and which mappings are sent to the back end before it asks
/// for them. Rings are mapped once in every mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All memory of the driver is mapped when it is allocated, and sent then (`iommu=pt`).
    Persistent,
    /// Buffers are mapped for each use. The back end has to ask for them. INVALIDATE is answered
    /// before the IOVA is used again (QEMU, and a guest with `iommu.strict=1`).
    OnDemand,
    /// As `OnDemand`, and each mapping is sent at once.
    Strict,
    /// As `Strict`, with INVALIDATEs sent for so many buffers at a time (`iommu.strict=0`).
    Batched(usize),
    /// Buffers are mapped and sent at their first use, and stay mapped until more than so many
    /// pages are: then the one that was unused for the longest time is unmapped.
    Reuse {
        /// The most pages of buffers.
        pages: usize,
    },
}

impl Mode {
    fn sends(self) -> bool {
        self != Self::OnDemand
    }
}

/// Where the pages of an allocation lie in guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// No two neighbours are neighbours there, and what is allocated crosses from one page into the
    /// next wherever that is possible.
    #[default]
    Scattered,
    /// Rings are contiguous and buffers begin with a page, for back ends that take what is
    /// contiguous for the device for contiguous memory (DPDK 22.11).
    Lenient,
}

/// Content of an UPDATE, also as the answer to MISS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// The mapping as it is: its access, and all neighbours that are contiguous in memory.
    #[default]
    Exact,
    /// As QEMU: a page of 4 KiB for reads and writes, whatever the mapping's access. A question for
    /// both is answered when the device may write.
    Qemu,
}

/// Parameters of an IOMMU.
#[derive(Clone, Copy, Debug)]
pub struct IommuConfig {
    /// When buffers are mapped.
    pub mode: Mode,
    /// Which IOVAs mappings get.
    pub iovas: Iovas,
    /// Where pages lie.
    pub placement: Placement,
    /// Rings, and buffers that are mapped for good, lie on pages of [`HUGE`] bytes.
    pub huge: bool,
    /// Content of UPDATEs.
    pub answers: Answers,
    /// Messages ask for answers, and those are awaited. Without, pages are not watched.
    pub awaited: bool,
}

impl IommuConfig {
    /// Scattered pages of 4 KiB, IOVAs that are used again at once, exact answers.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            iovas: Iovas::Reused,
            placement: Placement::Scattered,
            huge: false,
            answers: Answers::Exact,
            awaited: true,
        }
    }

    /// As QEMU with a guest that unmaps at once.
    #[must_use]
    pub fn qemu() -> Self {
        Self {
            answers: Answers::Qemu,
            ..Self::new(Mode::OnDemand)
        }
    }
}

/// Counts of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IommuCounts {
    /// Questions of the back end.
    pub misses: u64,
    /// Questions that got a no, because the page was not mapped for that access.
    pub refused: u64,
    /// UPDATEs sent.
    pub updates: u64,
    /// INVALIDATEs sent.
    pub invalidations: u64,
    /// ACCESS_FAILs of the back end.
    pub access_fails: u64,
    /// Other messages on the back end's channel.
    pub strange: u64,
}

/// A page in the IOMMU's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Granted {
    gpa: u64,
    access: Access,
}

#[derive(Debug)]
struct State {
    session: Session,
    /// By IOVA of the page.
    table: BTreeMap<u64, Granted>,
    /// By the driver's address of the first page.
    mappings: BTreeMap<u64, Mapping>,
    /// Buffers that `Reuse` may unmap, by the time of their last use.
    inactive: BTreeMap<u64, u64>,
    clock: u64,
    limbo: Vec<mappings::Revoked>,
    space: Space,
    pages: Pages,
    questions: Questions,
    counts: IommuCounts,
    faults: Vec<String>,
}

/// The IOMMU of one guest. See the module.
#[derive(Debug)]
pub struct Iommu {
    config: IommuConfig,
    /// Guest memory, by guest-physical address.
    ram: GuestRam,
    view: RwLock<View>,
    state: Mutex<State>,
}

impl Iommu {
    /// An IOMMU over guest memory, with nothing mapped.
    #[must_use]
    pub fn new(ram: &GuestRam, config: IommuConfig) -> Arc<Self> {
        let scattered = config.placement == Placement::Scattered;
        Arc::new(Self {
            config,
            ram: ram.clone(),
            view: RwLock::default(),
            state: Mutex::new(State {
                session: Session::default(),
                table: BTreeMap::new(),
                mappings: BTreeMap::new(),
                inactive: BTreeMap::new(),
                clock: 0,
                limbo: Vec::new(),
                space: Space::new(config.iovas),
                pages: Pages::new(ram.clone(), scattered),
                questions: Questions::default(),
                counts: IommuCounts::default(),
                faults: Vec::new(),
            }),
        })
    }

    /// Opens the channel for questions on a session whose features are agreed on, and serves it.
    ///
    /// # Errors
    /// When the back end refuses the channel.
    pub fn attach(self: &Arc<Self>, front: &mut FrontEnd) -> Result<(), FrontError> {
        front.open_backend_channel()?;
        let channel = front.take_backend_channel().ok_or(FrontError::Closed)?;
        self.serve(front, channel)
    }

    fn serve(self: &Arc<Self>, front: &FrontEnd, channel: UnixStream) -> Result<(), FrontError> {
        let served = channel.try_clone()?;
        let acknowledged = self.config.awaited && front.is_acknowledged();
        self.state().session = Session::new(front.line(), acknowledged, channel);
        channel::spawn(Arc::downgrade(self), served)
    }

    /// Sends everything that is mapped, except on demand: to a back end that is new, after it was
    /// given the memory.
    pub fn tell_all(&self) {
        let mut state = self.state();
        if self.config.mode.sends() {
            let pages: Vec<u64> = state.table.keys().copied().collect();
            state.update(self, &pages);
        }
    }

    /// Forgets the session.
    pub fn detach(&self) {
        self.state().session = Session::default();
    }

    /// Returns the parameters.
    #[must_use]
    pub fn config(&self) -> IommuConfig {
        self.config
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> IommuCounts {
        self.state().counts
    }

    /// Pages that are mapped.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.state().table.len()
    }

    /// Returns everything that is mapped: IOVA, guest-physical address and access of each page.
    #[must_use]
    pub fn granted(&self) -> Vec<(u64, u64, Access)> {
        let state = self.state();
        let entry = |(iova, page): (&u64, &Granted)| (*iova, page.gpa, page.access);
        state.table.iter().map(entry).collect()
    }

    /// Checks every page that is watched; returns how many.
    ///
    /// # Errors
    /// When a page was written after INVALIDATE's answer, or a message was refused or not answered.
    pub fn verify(&self) -> Result<usize, String> {
        let mut state = self.state();
        let State { pages, faults, .. } = &mut *state;
        let watched = pages.verify(faults);
        if faults.is_empty() {
            Ok(watched)
        } else {
            Err(faults.join("; "))
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the guest-physical address behind an address of the driver's; every other address is
    /// one.
    #[must_use]
    pub fn physical(&self, addr: u64) -> u64 {
        self.view().physical(addr)
    }
}
