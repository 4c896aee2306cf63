//! What the supervisor keeps for the switch, so that guests outlive it.
//!
//! For each open vhost-user connection the switch deposits descriptors under numbers ([`Ask::Keep`]) and a record that
//! names them ([`Ask::KeepRecord`]). The supervisor understands none of it; it hands everything to the next switch.
//! To the session's own descriptors, numbered from 0, come four of the connection.
//!
//! [`Ask::Keep`]: crate::supervision::Ask::Keep
//! [`Ask::KeepRecord`]: crate::supervision::Ask::KeepRecord

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory::Mapping;
use port::PortId;
use serde::{Deserialize, Serialize};

use crate::switching::PortConfig;

/// Bytes of one record at most.
pub const MAX_RECORD: usize = 96 << 10;
/// Descriptors kept for one port at most: 509 memory regions, three for each of 256 queues, and the rest.
pub const MAX_KEPT: usize = 1536;

/// The connection's socket.
pub const SOCKET: u64 = u64::MAX;
/// The end of the answer pipe that is read.
pub const PIPE_FROM: u64 = u64::MAX - 1;
/// The end of the answer pipe that is written.
pub const PIPE_TO: u64 = u64::MAX - 2;
/// The memory in which packed queues say where they stand.
pub const JOURNAL: u64 = u64::MAX - 3;

/// Version of [`ConnectionRecord`]'s encoding.
pub(crate) const VERSION: u8 = 3;

/// A connection as bytes: what is beside its session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// The port as it was configured.
    pub port: PortConfig,
    /// The virtio features that the front end was offered. What is offered to the next one may be something else.
    pub offered: u64,
    /// The session's own record.
    pub session: Vec<u8>,
    /// The message that was answered last: code and payload. Whether its answer has left, the pipe tells.
    pub answered: Option<(u32, Vec<u8>)>,
    /// Part of a message has been taken from the socket and died with the process.
    pub torn: bool,
    /// How often each queue was started, by index.
    pub starts: Vec<u32>,
    /// Connections of this port so far.
    pub connections: u64,
}

impl ConnectionRecord {
    /// As bytes, the version first.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Only a writer that runs full can fail here, and a vector grows.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    /// Out of bytes; nothing that it says is checked.
    ///
    /// # Errors
    /// Another version, or bytes that are no record.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        match bytes.split_first() {
            Some((&VERSION, rest)) => match postcard::take_from_bytes(rest) {
                Ok((record, [])) => Ok(record),
                Ok(_) => Err("a record with something behind it".into()),
                Err(error) => Err(format!("a record that makes no sense: {error}")),
            },
            Some((version, _)) => Err(format!("a record of version {version}")),
            None => Err("an empty record".into()),
        }
    }
}

/// Bytes of the file of marks, in which the switch says whom it serves; the supervisor reads them when the switch has
/// died of itself. It is an array of `u64`:
///
/// ```text
/// 0       the culprit: 0, or what the mark of the first thread said that noticed its own death
/// 1       the mark of the session thread
/// 2 + n   the mark of worker n
/// ```
///
/// The lower half of a mark is the number of the port that its thread serves, plus one, or 0 for nobody. The upper half
/// counts: a mark that stays the same belongs to a thread that does not get on.
pub const MARKS: u64 = 4096;
/// The place of the culprit.
const CULPRIT: usize = 0;
/// Threads that have a mark.
const THREADS: usize = MARKS as usize / 8 - 1;
/// The culprit, where the thread that died served nobody.
const NOBODY: u64 = u64::MAX;
/// One more in the upper half of a mark.
const ONCE: u64 = 1 << 32;

/// The marks, in the process that makes them.
#[derive(Clone, Debug)]
pub struct Marks(Arc<Mapping>);

impl Marks {
    /// Maps the file.
    ///
    /// # Errors
    /// The system's refusal, as text.
    pub fn map(fd: &OwnedFd) -> Result<Self, String> {
        let mapping = Mapping::shared(fd, MARKS, 0).map_err(|e| e.to_string())?;
        Ok(Self(Arc::new(mapping)))
    }

    /// The mark of the thread of this number.
    #[must_use]
    pub fn of(&self, thread: usize) -> Mark {
        Mark {
            marks: Arc::clone(&self.0),
            thread: thread.min(THREADS - 1),
        }
    }
}

/// One thread's mark.
#[derive(Clone, Debug)]
pub struct Mark {
    marks: Arc<Mapping>,
    thread: usize,
}

impl Mark {
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        let words = self.marks.as_ptr().cast::<u64>();
        // SAFETY: `at` is CULPRIT or 1 + `thread`, at most THREADS, so the word is inside the mapping, which is
        // page-aligned and lives as long as `marks`.
        unsafe { AtomicU64::from_ptr(words.wrapping_add(at)) }
    }

    #[inline]
    fn own(&self) -> &AtomicU64 {
        self.word(1 + self.thread)
    }

    #[inline]
    fn set(&self, port: u64) {
        let count = (self.own().load(Ordering::Relaxed) & !(ONCE - 1)).wrapping_add(ONCE);
        self.own().store(count | port, Ordering::Relaxed);
    }

    /// From now on, this port is served.
    #[inline]
    pub fn serve(&self, port: PortId) {
        self.set(u64::from(port.0.wrapping_add(1)));
    }

    /// From now on, nobody.
    #[inline]
    pub fn rest(&self) {
        self.set(0);
    }

    /// Whom the thread serves.
    #[must_use]
    pub fn served(&self) -> Option<PortId> {
        port_of(self.own().load(Ordering::Relaxed))
    }

    /// The process dies of what this thread does: whom it serves is the culprit, or nobody. Only the first thread that
    /// says so counts. It may be called in a signal handler.
    pub fn confess(&self) {
        let port = self.own().load(Ordering::Relaxed) & (ONCE - 1);
        let culprit = if port == 0 { NOBODY } else { port };
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        // Somebody else has said so before: that one counts.
        let _ = self
            .word(CULPRIT)
            .compare_exchange(0, culprit, success, failure);
    }
}

/// Whom a mark names.
fn port_of(mark: u64) -> Option<PortId> {
    let number = (mark as u32).checked_sub(1)?;
    Some(PortId(number))
}

/// The marks as they were at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look([u64; 1 + THREADS]);

impl Look {
    /// Looks at the file of marks.
    ///
    /// # Errors
    /// The system's refusal, or another file.
    pub fn at(marks: impl AsFd) -> std::io::Result<Self> {
        let mut bytes = vec![0; MARKS as usize];
        let read = rustix::io::pread(&marks, &mut bytes[..], 0)?;
        let (words, _) = bytes[..read].as_chunks();
        let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let words = words.try_into();
        words
            .map(Self)
            .map_err(|_| std::io::ErrorKind::InvalidData.into())
    }

    /// Ports whose threads have not got on since an earlier look: those of workers, or else that of the session thread,
    /// which may have waited for a worker.
    #[must_use]
    pub fn stuck_since(&self, before: &Self) -> Vec<PortId> {
        let both = self.0.iter().zip(&before.0).skip(1 + CULPRIT);
        let stuck = both.map(|(now, before)| port_of(*now).filter(|_| now == before));
        let mut all: Vec<_> = stuck.collect();
        let workers = all.split_off(1);
        let workers: Vec<_> = workers.into_iter().flatten().collect();
        if workers.is_empty() {
            return all.into_iter().flatten().collect();
        }
        workers
    }

    /// Whether the session thread has got on since an earlier look.
    #[must_use]
    pub fn session_gets_on_since(&self, before: &Self) -> bool {
        self.0[1 + CULPRIT] != before.0[1 + CULPRIT]
    }

    /// The port of the thread that the process died of, or, when none has said so, those of all threads.
    fn to_blame(&self) -> Vec<PortId> {
        match self.0[CULPRIT] {
            0 => self.0.iter().filter_map(|mark| port_of(*mark)).collect(),
            NOBODY => Vec::new(),
            culprit => port_of(culprit).into_iter().collect(),
        }
    }
}

/// Ports that the dead switch was serving, as far as they are to blame: that of the thread that it died of, or, when none
/// has said so, those of all threads. The marks are wiped.
///
/// # Errors
/// The system's refusal.
pub fn to_blame(marks: impl AsFd) -> std::io::Result<Vec<PortId>> {
    let look = Look::at(&marks)?;
    wipe(marks)?;
    Ok(look.to_blame())
}

/// Wipes the marks of a switch that is gone.
///
/// # Errors
/// The system's refusal.
pub fn wipe(marks: impl AsFd) -> std::io::Result<()> {
    rustix::io::pwrite(marks, &[0; MARKS as usize], 0)?;
    Ok(())
}
