//! The shared region between the switch and one control process: two rings and two doorbells.
//!
//! ```text
//! 0          upcall ring, switch to control
//! HALF       answer ring, control to switch
//! ```
//!
//! The switch creates a new region for every control process and seals it against resizing; the old
//! region of a dead control is dropped, because the switch sends its unanswered upcalls again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mapping::Mapping;
use ring::{Consumer, Producer, RingMemory};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sys::{event, file};

const HALF: usize = 1 << 20;
/// Payload bytes of each ring.
const CAPACITY: u64 = 512 << 10;

/// The descriptors of a region, as they travel to control.
#[derive(Debug)]
pub struct Region {
    /// The memory file.
    pub memory: OwnedFd,
    /// Rung by the switch when control sleeps.
    pub upcall_bell: OwnedFd,
    /// Rung by control when the switch sleeps.
    pub answer_bell: OwnedFd,
}

impl Region {
    /// Creates a region.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn create() -> io::Result<Self> {
        Ok(Self {
            memory: file::fixed("lasthop-upcalls", 2 * HALF as u64)?,
            upcall_bell: event::create()?,
            answer_bell: event::create()?,
        })
    }

    /// Duplicates the descriptors of the region.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            memory: self.memory.try_clone()?,
            upcall_bell: self.upcall_bell.try_clone()?,
            answer_bell: self.answer_bell.try_clone()?,
        })
    }

    fn halves(&self) -> io::Result<(RingMemory, RingMemory)> {
        if !file::is_fixed(&self.memory)? {
            return Err(io::Error::other("the upcall region is not sealed"));
        }
        let mapping =
            Mapping::shared(&self.memory, 2 * HALF as u64, 0).map_err(io::Error::other)?;
        let mapping = Arc::new(mapping);
        let half = |at: usize| {
            let owner: Arc<Mapping> = Arc::clone(&mapping);
            // SAFETY: the mapping is 2 * HALF bytes long, page-aligned, alive as long as `owner`,
            // and sealed against shrinking; only ring ends touch it in this process.
            unsafe { RingMemory::from_raw(mapping.as_ptr().wrapping_add(at), HALF, owner) }
                .map_err(io::Error::other)
        };
        Ok((half(0)?, half(HALF)?))
    }

    /// Returns the switch's ends; formats both rings.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn switch_ends(self) -> io::Result<(Sender, Receiver)> {
        let (upcalls, answers) = self.halves()?;
        ring::format(&answers, CAPACITY).map_err(io::Error::other)?;
        Ok((
            Sender {
                ring: Producer::create(upcalls, CAPACITY).map_err(io::Error::other)?,
                bell: self.upcall_bell,
            },
            Receiver::new(
                Consumer::attach(answers).map_err(io::Error::other)?,
                self.answer_bell,
            ),
        ))
    }

    /// Returns control's ends of a region that the switch has formatted.
    ///
    /// # Errors
    /// The region is malformed.
    pub fn control_ends(self) -> io::Result<(Sender, Receiver)> {
        let (upcalls, answers) = self.halves()?;
        Ok((
            Sender {
                ring: Producer::attach(answers).map_err(io::Error::other)?,
                bell: self.answer_bell,
            },
            Receiver::new(
                Consumer::attach(upcalls).map_err(io::Error::other)?,
                self.upcall_bell,
            ),
        ))
    }
}

/// The sending end of a ring, with its doorbell.
#[derive(Debug)]
pub struct Sender {
    ring: Producer,
    bell: OwnedFd,
}

impl Sender {
    /// Appends one record. Returns `false` when the ring is full or broken.
    pub fn send<T: Serialize>(&mut self, record: &T) -> bool {
        let Ok(bytes) = postcard::to_allocvec(record) else {
            return false;
        };
        self.ring.push(&bytes).is_ok()
    }

    /// Wakes the other side when it sleeps; once after a series of [`Sender::send`].
    pub fn ring_bell(&mut self) {
        if self.ring.needs_doorbell() {
            // A bell that cannot be rung is one that the other side gave up.
            let _ = event::ring(&self.bell);
        }
    }
}

/// The receiving end of a ring, with its doorbell.
#[derive(Debug)]
pub struct Receiver {
    ring: Consumer,
    bell: OwnedFd,
    buffer: Vec<u8>,
}

impl Receiver {
    fn new(ring: Consumer, bell: OwnedFd) -> Self {
        Self {
            ring,
            bell,
            buffer: Vec::new(),
        }
    }

    /// Returns the next record, or `None` when there is none.
    ///
    /// # Errors
    /// The other side broke the ring or sent a record that is not a `T`; the ring is unusable then.
    pub fn recv<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        if !self.ring.pop(&mut self.buffer).map_err(io::Error::other)? {
            return Ok(None);
        }
        postcard::from_bytes(&self.buffer)
            .map(Some)
            .map_err(io::Error::other)
    }

    /// Requests the doorbell before a sleep; `false` when a record waits already.
    pub fn prepare_sleep(&mut self) -> bool {
        self.ring.prepare_sleep()
    }

    /// Ends a sleep: no doorbell is needed. Whether it has rung, the event says.
    pub fn woke(&mut self) {
        self.ring.woke();
    }

    /// Ends a sleep, and clears the doorbell, which has rung or may have.
    pub fn rang(&mut self) {
        self.woke();
        event::clear(&self.bell);
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
