//! Captured frames: copies made by the switch for one capture, in memory that it shares with
//! control.
//!
//! ```text
//! 0                  word 0: 1 when the capture has ended
//! 64 * (1 + n)       thread n of the switch: matching frames, those without room
//! 4096 + n * R       ring of thread n, see `ring`; record: head of 32 bytes, bytes of the frame
//! ```
//!
//! Each thread of the switch writes to a ring of its own and never waits: a frame without room is
//! counted and lost. There is no doorbell: control polls. Numbers are native-endian, as both ends
//! run on one machine.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mapping::Mapping;
use port::{DropReason, Gso, MAX_OUTGOING, Offload, PartialChecksum, PortId, REASONS};
use ring::{Consumer, Producer, RingMemory};
use serde::{Deserialize, Serialize};
use wire::segment::GsoKind;

/// Most captures at once.
pub const MAX_CAPTURES: usize = 8;
/// Least bytes of a thread's ring; some frames of usual length.
pub const MIN_RING: u32 = 4 << 10;
/// Most bytes of a thread's ring.
pub const MAX_RING: u32 = 64 << 20;

/// Bytes before the first ring.
const PAGE: usize = 4096;
/// Words from a thread's counters to the next one's.
const STRIDE: usize = 8;
/// Number of threads that the first page has room for.
const MAX_THREADS: usize = PAGE / 64 - 1;
/// Bytes of a record's head.
const HEAD: usize = 32;

/// Direction of a frame, as its port sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Way {
    /// The port sent it.
    In,
    /// The port received it.
    Out,
}

/// Parameters of a capture.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureCommand {
    /// Its number, chosen by control.
    pub id: u32,
    /// Port whose frames are captured.
    pub port: PortId,
    /// A text of the crate `filter`.
    pub filter: String,
    /// Most bytes of each frame.
    pub snaplen: u32,
    /// One direction, or both.
    pub way: Option<Way>,
    /// Only dropped frames.
    pub only_drops: bool,
    /// Bytes of each thread's ring, a power of two from [`MIN_RING`] to [`MAX_RING`].
    pub ring: u32,
}

/// Metadata of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameMetadata {
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Bytes of the whole frame.
    pub len: u32,
    /// Direction of the frame.
    pub way: Way,
    /// Drop reason, if it was dropped.
    pub dropped: Option<DropReason>,
    /// Offloads that its sender has requested.
    pub offload: Offload,
}

impl FrameMetadata {
    fn to_bytes(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.at_ns.to_ne_bytes());
        head[8..12].copy_from_slice(&self.len.to_ne_bytes());
        head[12] = u8::from(self.way == Way::Out);
        head[13] = self.dropped.map_or(0, |reason| reason as u8 + 1);
        let mut put = |at: usize, value: u16| {
            head[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        };
        if let Some(checksum) = self.offload.checksum {
            put(14, 1);
            put(16, checksum.start);
            put(18, checksum.offset);
        }
        if let Some(gso) = self.offload.gso {
            put(20, 1 + gso.kind as u16);
            put(22, gso.size);
            put(24, gso.header_len);
            put(26, gso.ecn.into());
        }
        head
    }

    /// Parses a head; `None` for one that no switch of this version writes.
    fn from_bytes(head: &[u8; HEAD]) -> Option<Self> {
        let u16_at = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let len = u32::from_ne_bytes(*head[8..].first_chunk()?);
        let dropped = match head[13] {
            0 => None,
            n => Some(*REASONS.get(usize::from(n) - 1)?),
        };
        let checksum = (u16_at(14) != 0).then(|| PartialChecksum {
            start: u16_at(16),
            offset: u16_at(18),
        });
        let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp4, GsoKind::Udp6];
        let kind = |n: u16| {
            let mut all = kinds.into_iter();
            all.find(|kind| 1 + *kind as u16 == n)
        };
        let gso = match u16_at(20) {
            0 => None,
            n => Some(Gso {
                kind: kind(n)?,
                size: u16_at(22),
                header_len: u16_at(24),
                ecn: u16_at(26) != 0,
            }),
        };
        Some(Self {
            at_ns: u64::from_ne_bytes(*head.first_chunk()?),
            len: (len <= MAX_OUTGOING).then_some(len)?,
            way: if head[12] == 0 { Way::In } else { Way::Out },
            dropped,
            offload: Offload { checksum, gso },
        })
    }
}

/// Frame counters of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Frames that matched.
    pub meant: u64,
    /// Those of them for which there was no room.
    pub lost: u64,
}

/// The memory of one capture, mapped.
#[derive(Clone, Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
    threads: usize,
    ring: u32,
}

fn stride(ring: u32) -> io::Result<usize> {
    let allowed = ring.is_power_of_two() && (MIN_RING..=MAX_RING).contains(&ring);
    if !allowed {
        return Err(io::Error::other("a ring of no size that a capture has"));
    }
    let bytes = ring::memory_len(ring.into()).map_err(io::Error::other)?;
    Ok(bytes.next_multiple_of(PAGE))
}

fn total(threads: usize, ring: u32) -> io::Result<u64> {
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(io::Error::other("a capture of too many threads"));
    }
    Ok((PAGE + threads * stride(ring)?) as u64)
}

impl Region {
    /// Creates memory for so many threads, and the file behind it, whose length is sealed.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn create(threads: usize, ring: u32) -> io::Result<(Self, OwnedFd)> {
        let file = sys::file::fixed("lasthop-capture", total(threads, ring)?)?;
        Ok((Self::map(&file, threads, ring)?, file))
    }

    /// Maps memory that the switch has created.
    ///
    /// # Errors
    /// The file is not sealed or has another length.
    pub fn map(file: &OwnedFd, threads: usize, ring: u32) -> io::Result<Self> {
        if !sys::file::is_fixed(file)? {
            return Err(io::Error::other("the memory of a capture could shrink"));
        }
        let mapping = Mapping::shared(file, total(threads, ring)?, 0).map_err(io::Error::other)?;
        Ok(Self {
            mapping: Arc::new(mapping),
            threads,
            ring,
        })
    }

    /// Returns a word of the first page.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < PAGE / 8, "a word of the first page");
        let words = self.mapping.as_ptr().cast::<u64>();
        // SAFETY: the word lies in the first page of the mapping, which is page-aligned and at
        // least that long, cannot shrink, and lives as long as `self`; this process accesses it by
        // atomics only.
        unsafe { AtomicU64::from_ptr(words.wrapping_add(at)) }
    }

    fn ring(&self, thread: usize) -> io::Result<RingMemory> {
        assert!(thread < self.threads, "a thread of this capture");
        let stride = stride(self.ring)?;
        let at = PAGE + thread * stride;
        let owner: Arc<Mapping> = Arc::clone(&self.mapping);
        // SAFETY: `total` has room for `threads` rings of `stride` bytes behind the first page; the
        // file is sealed against shrinking, and the mapping lives as long as `owner`. Only ends of
        // the ring touch it in this process.
        unsafe { RingMemory::from_raw(self.mapping.as_ptr().wrapping_add(at), stride, owner) }
            .map_err(io::Error::other)
    }

    /// Returns the end that a thread of the switch writes to.
    ///
    /// # Errors
    /// Never in memory that [`Region::create`] has made.
    pub fn writer(&self, thread: usize) -> io::Result<Writer> {
        let memory = self.ring(thread)?;
        Ok(Writer {
            ring: Producer::create(memory, self.ring.into()).map_err(io::Error::other)?,
            region: self.clone(),
            words: STRIDE * (1 + thread),
            counts: Counts::default(),
        })
    }

    /// Marks the end of the capture: no [`Writer`] is left.
    pub fn end(&self) {
        // Release: a reader that sees it sees all that was written before.
        self.word(0).store(1, Ordering::Release);
    }

    /// Returns the end that control reads, of memory whose writers all exist.
    ///
    /// # Errors
    /// A ring is malformed.
    pub fn reader(self) -> io::Result<Reader> {
        let attach = |thread| {
            let ring = Consumer::attach(self.ring(thread)?).map_err(io::Error::other)?;
            Ok(Input {
                ring,
                next: None,
                bytes: Vec::new(),
            })
        };
        let lanes = (0..self.threads).map(attach).collect::<io::Result<_>>()?;
        Ok(Reader {
            lanes,
            region: self,
        })
    }
}

/// Writing end of one thread of the switch.
#[derive(Debug)]
pub struct Writer {
    ring: Producer,
    region: Region,
    words: usize,
    counts: Counts,
}

impl Writer {
    /// Returns whether there is room for a frame of which so many bytes are captured; if not, it is
    /// counted as lost.
    pub fn admit(&mut self, bytes: usize) -> bool {
        let room = self.ring.has_room(HEAD + bytes);
        if !room {
            self.count(true);
        }
        room
    }

    /// Writes a frame, or counts it as lost. Never waits and makes no system call.
    pub fn write(&mut self, seen: &FrameMetadata, bytes: &[u8]) {
        let pushed = self.ring.push_parts(&[&seen.to_bytes(), bytes]);
        self.count(pushed.is_err());
    }

    /// Counts a matching frame.
    fn count(&mut self, is_lost: bool) {
        if is_lost {
            self.counts.lost += 1;
            let lost = self.region.word(self.words + 1);
            lost.store(self.counts.lost, Ordering::Relaxed);
        }
        self.counts.meant += 1;
        let meant = self.region.word(self.words);
        meant.store(self.counts.meant, Ordering::Relaxed);
    }
}

/// One thread's ring with its next frame.
#[derive(Debug)]
struct Input {
    ring: Consumer,
    next: Option<FrameMetadata>,
    bytes: Vec<u8>,
}

impl Input {
    /// Fills `next` with the next frame.
    fn look(&mut self) -> io::Result<()> {
        if self.next.is_some()
            || !self
                .ring
                .pop_lazily(&mut self.bytes)
                .map_err(io::Error::other)?
        {
            return Ok(());
        }
        let seen = self.bytes.first_chunk().and_then(FrameMetadata::from_bytes);
        let whole = |seen: &FrameMetadata| self.bytes.len() - HEAD <= seen.len as usize;
        self.next = seen.filter(whole);
        match self.next {
            Some(_) => Ok(()),
            None => Err(io::Error::other("malformed record in a capture ring")),
        }
    }
}

/// Reading end of control.
#[derive(Debug)]
pub struct Reader {
    lanes: Vec<Input>,
    region: Region,
}

impl Reader {
    /// Takes the oldest frame: those of one thread come in their order, and those of several
    /// threads by their times, as far as they have arrived. The bytes are the frame's first.
    ///
    /// # Errors
    /// The switch has broken the ring.
    pub fn take<T>(
        &mut self,
        each: impl FnOnce(&FrameMetadata, &[u8]) -> T,
    ) -> io::Result<Option<T>> {
        for lane in &mut self.lanes {
            lane.look()?;
        }
        let waiting = self.lanes.iter_mut().filter(|lane| lane.next.is_some());
        let oldest = waiting.min_by_key(|lane| lane.next.map(|seen| seen.at_ns));
        Ok(oldest.and_then(|lane| {
            let seen = lane.next.take()?;
            Some(each(&seen, &lane.bytes[HEAD..]))
        }))
    }

    /// Returns whether the writers have ended. Call it before the last [`Reader::take`].
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.region.word(0).load(Ordering::Acquire) != 0
    }

    /// Returns the number of frames so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let word = |at| self.region.word(at).load(Ordering::Relaxed);
        let of = |thread: usize| (word(STRIDE * (1 + thread)), word(STRIDE * (1 + thread) + 1));
        let all = (0..self.lanes.len()).map(of);
        all.fold(Counts::default(), |sum, (meant, lost)| Counts {
            meant: sum.meant.wrapping_add(meant),
            lost: sum.lost.wrapping_add(lost),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(at_ns: u64) -> FrameMetadata {
        FrameMetadata {
            at_ns,
            len: 100,
            way: Way::Out,
            dropped: Some(DropReason::ReceiverFull),
            offload: Offload {
                checksum: Some(PartialChecksum {
                    start: 34,
                    offset: 16,
                }),
                gso: Some(Gso {
                    kind: GsoKind::Udp6,
                    size: 1448,
                    header_len: 66,
                    ecn: true,
                }),
            },
        }
    }

    fn ends(threads: usize, ring: u32) -> (Region, Vec<Writer>, Reader) {
        let (region, file) = Region::create(threads, ring).unwrap();
        let writers = (0..threads).map(|n| region.writer(n).unwrap()).collect();
        let reader = Region::map(&file, threads, ring).unwrap().reader().unwrap();
        (region, writers, reader)
    }

    #[test]
    fn what_is_known_of_a_frame_arrives() {
        let plain = FrameMetadata {
            way: Way::In,
            dropped: None,
            offload: Offload::default(),
            ..seen(7)
        };
        for seen in [seen(u64::MAX), plain] {
            assert_eq!(FrameMetadata::from_bytes(&seen.to_bytes()), Some(seen));
        }
    }

    #[test]
    fn frames_of_several_threads_come_by_their_times() {
        let (region, mut writers, mut reader) = ends(2, MIN_RING);
        for (thread, at) in [(0, 1), (0, 4), (1, 2), (1, 3)] {
            writers[thread].write(&seen(at), &[at as u8; 9]);
        }
        drop(writers);
        region.end();
        assert!(reader.is_ended());
        for at in 1..=4 {
            let got = reader.take(|seen, bytes| (seen.at_ns, bytes.to_vec()));
            assert_eq!(got.unwrap(), Some((at, vec![at as u8; 9])));
        }
        assert_eq!(reader.take(|_, _| ()).unwrap(), None);
        assert_eq!(reader.counts(), Counts { meant: 4, lost: 0 });
    }

    #[test]
    fn what_finds_no_room_is_counted_and_the_rest_is_whole() {
        let (_region, mut writers, mut reader) = ends(1, MIN_RING);
        for n in 0..100 {
            writers[0].write(&seen(n), &[n as u8; 100]);
        }
        let mut got = 0;
        while let Some(at) = reader.take(|seen, _| seen.at_ns).unwrap() {
            assert_eq!(at, got);
            got += 1;
        }
        let counts = reader.counts();
        assert_eq!((counts.meant, counts.lost), (100, 100 - got));
        assert!(got > 10 && counts.lost > 10);
    }

    #[test]
    fn a_frame_that_is_not_admitted_is_counted_as_lost_and_there_is_room_again_later() {
        let (_region, mut writers, mut reader) = ends(1, MIN_RING);
        let writer = &mut writers[0];
        let mut written = 0;
        while writer.admit(100) {
            writer.write(&seen(written), &[0; 100]);
            written += 1;
        }
        assert!(!writer.admit(100) && writer.admit(8), "8 bytes fit still");
        let (meant, lost) = (written + 2, 2);
        assert_eq!(reader.counts(), Counts { meant, lost });
        while reader.take(|_, _| ()).unwrap().is_some() {}
        assert!(writer.admit(100));
        assert_eq!(reader.counts(), Counts { meant, lost });
    }

    #[test]
    fn records_and_sizes_that_make_no_sense_are_refused() {
        let (_region, mut writers, mut reader) = ends(1, MIN_RING);
        let short = FrameMetadata { len: 3, ..seen(1) };
        writers[0].write(&short, &[0; 4]);
        assert!(reader.take(|_, _| ()).is_err());
        for (threads, ring) in [(0, MIN_RING), (64, MIN_RING), (1, 5000), (1, 128 << 20)] {
            assert!(Region::create(threads, ring).is_err(), "{threads} {ring}");
        }
        let mut strange = seen(1).to_bytes();
        strange[13] = 200;
        assert_eq!(FrameMetadata::from_bytes(&strange), None);
    }
}
