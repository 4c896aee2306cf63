//! Memory with rings and buffers: one sealed, sparse file for all ports of a process, and one more
//! for each pipe, which this process or that of the other end has made.
//!
//! ```text
//!   shared file:  0 .. CONTROL      blocks: the slots of a ring, then a page with its index lines
//!                 CONTROL ..        buffers
//! ```
//! The layout is private: the switch, and the other end of a pipe, get the offset of each part.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};

pub(crate) use pipes::Block;
use rustix::io::Errno;

use crate::abi;
use crate::names::Name;
use crate::pages::{PAGE, Pages, Pool};
use crate::view::{PRIVATE, View, lock};
use crate::wake::Line;
use crate::{SAY, refuse};
use interpose::system::out_of_the_way;

/// Bytes for slots and index lines.
const CONTROL: u64 = 32 << 20;
const NO_ROOM: &str = "there is no room for more rings in this memory, whatever its buffers";
/// Bytes of a buffer.
pub(crate) const BUFFER_SIZE: u32 = 2048;
/// Buffers of memory that a process makes, and the variable that changes it.
const BUFFERS: u32 = 65_536;
const BUFFERS_VARIABLE: &str = "LASTHOP_NETMAP_BUFFERS";
/// Bounds of [`BUFFERS_VARIABLE`]: the memory of a request of API 11 has 32 bits.
const BUFFERS_RANGE: std::ops::RangeInclusive<u32> = 1024..=1_048_576;
/// Number of the process's own memory, as netmap's that is shared by all ports.
pub(crate) const OWN_MEMORY: u16 = 1;
/// Distance of the two index lines, in the page behind the slots: ours and the other side's, or a
/// producer's and its consumer's.
pub(crate) const LINES: u64 = pipes::LINE_DISTANCE;

/// Where the parts of a shared file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of the file.
    pub(crate) file_size: u64,
    /// Offset of buffer 0.
    pub(crate) pool: u64,
    /// Bytes of a buffer.
    pub(crate) buffer_size: u32,
    /// Number of buffers.
    pub(crate) buffers: u32,
}

/// A ring's header in the private part, with its slots behind.
#[derive(Debug)]
pub(crate) struct Frame {
    region: Arc<Region>,
    page: u64,
    len: u64,
}

impl Frame {
    /// Offset of the `struct netmap_ring` in the view.
    pub(crate) fn offset(&self) -> u64 {
        self.page + PAGE - size_of::<abi::Ring>() as u64
    }

    /// Its address.
    pub(crate) fn header(&self) -> NonNull<abi::Ring> {
        let size = size_of::<abi::Ring>() as u64;
        self.region.view.pointer(self.offset(), size).cast()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.region.view.hide(self.page + PAGE);
        lock(&self.region.frames).give(self.page, self.len);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) view: View,
    pub(crate) mem_id: u16,
    pub(crate) geometry: Geometry,
    is_ours: bool,
    /// Pages of the private part.
    frames: Mutex<Pages>,
    /// Pages for blocks; empty where the memory is another process's.
    blocks: Mutex<Pages>,
    pool: Mutex<Pool>,
}

/// Bytes of a cache line. Each buffer is a multiple of it, and so is its place.
const LINE: u64 = 64;

fn slot_bytes(slots: u16) -> u64 {
    (u64::from(slots) * size_of::<abi::Slot>() as u64).next_multiple_of(PAGE)
}

/// Returns how many buffers memory has that we make.
fn buffers() -> u32 {
    let Some(text) = std::env::var_os(BUFFERS_VARIABLE) else {
        return BUFFERS;
    };
    let count = text.to_str().and_then(|text| text.parse().ok());
    let count = count.filter(|count| BUFFERS_RANGE.contains(count));
    count.unwrap_or_else(|| {
        let (text, least, most) = (text.display(), BUFFERS_RANGE.start(), BUFFERS_RANGE.end());
        SAY.once(&format!(
            "{BUFFERS_VARIABLE}={text}: expected {least} to {most}"
        ));
        BUFFERS
    })
}

impl Region {
    /// The process's own memory, which is made when it is first asked for.
    ///
    /// # Errors
    /// The system's refusal, of the first time.
    pub(crate) fn own() -> Result<&'static Arc<Self>, Errno> {
        static OWN: OnceLock<Result<Arc<Region>, Errno>> = OnceLock::new();
        let made = OWN.get_or_init(|| Self::with_buffers(buffers(), OWN_MEMORY).map(Arc::new));
        made.as_ref().map_err(|errno| *errno)
    }

    /// Memory for one pipe, number `mem_id` here: the other end reaches nothing else of ours.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn for_pipe(mem_id: u16) -> Result<Self, Errno> {
        Self::with_buffers(buffers(), mem_id)
    }

    /// Memory that we make, number `mem_id`, with so many buffers.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn with_buffers(buffers: u32, mem_id: u16) -> Result<Self, Errno> {
        Self::make(buffers, mem_id).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
            refuse(errno, &format!("memory with {buffers} buffers: {error}"))
        })
    }

    fn make(buffers: u32, mem_id: u16) -> io::Result<Self> {
        let geometry = Geometry {
            file_size: CONTROL + u64::from(buffers) * u64::from(BUFFER_SIZE),
            pool: CONTROL,
            buffer_size: BUFFER_SIZE,
            buffers,
        };
        let file = out_of_the_way(sys::file::fixed("netmap", geometry.file_size)?);
        Ok(Self {
            view: View::new(file, geometry.file_size)?,
            mem_id,
            geometry,
            is_ours: true,
            frames: Mutex::new(Pages::new(0, PRIVATE)),
            blocks: Mutex::new(Pages::new(0, CONTROL)),
            pool: Mutex::new(Pool::new(buffers)),
        })
    }

    /// The memory of another process, number `mem_id` here.
    ///
    /// # Errors
    /// A file that may shrink or is not as large; buffers that do not lie in it, or begin within a
    /// cache line, where numbers would be misaligned; the system's refusal.
    pub(crate) fn of_other(file: OwnedFd, geometry: Geometry, mem_id: u16) -> io::Result<Self> {
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        let size = rustix::fs::fstat(&file)?.st_size;
        let fits = u64::try_from(size).is_ok_and(|size| size >= geometry.file_size);
        let buffers = u64::from(geometry.buffers) * u64::from(geometry.buffer_size);
        let end = geometry.pool.checked_add(buffers);
        let is_inside = end.is_some_and(|end| end <= geometry.file_size);
        let is_sane = geometry.file_size.is_multiple_of(PAGE)
            && geometry.file_size <= 1 << 40
            && geometry.pool.is_multiple_of(LINE)
            && u64::from(geometry.buffer_size).is_multiple_of(LINE)
            && (LINE..=1 << 16).contains(&geometry.buffer_size.into());
        if !sys::file::is_fixed(&file)? || !fits || !is_inside || !is_sane {
            return Err(refused());
        }
        Ok(Self {
            view: View::new(file, geometry.file_size)?,
            mem_id,
            geometry,
            is_ours: false,
            frames: Mutex::new(Pages::new(0, PRIVATE)),
            blocks: Mutex::new(Pages::new(0, 0)),
            pool: Mutex::new(Pool::new(0)),
        })
    }

    /// The shared file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.view.file()
    }

    /// Whether this process has made it, and takes room for rings in it.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Whether this is a file of ours.
    pub(crate) fn is_file(&self, other: BorrowedFd<'_>) -> bool {
        let stat = |file| rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
        matches!((stat(self.file()), stat(other)), (Ok(ours), Ok(theirs)) if ours == theirs)
    }

    /// Takes room for the slots and index lines of a ring, zeroed.
    ///
    /// # Errors
    /// `ENOMEM`: there is none.
    pub(crate) fn block(&self, slots: u16) -> Result<Block, Errno> {
        let len = slot_bytes(slots) + PAGE;
        let start = lock(&self.blocks).take(len);
        let start = start.ok_or_else(|| refuse(Errno::NOMEM, NO_ROOM))?;
        let bytes = self.view.shared(start, len);
        // SAFETY: the pages are ours alone until the block is handed out.
        unsafe { bytes.write_bytes(0, len as usize) };
        Ok(Block {
            slots: start,
            lines: start + slot_bytes(slots),
        })
    }

    /// Returns the room of a ring, which has no other user any more.
    pub(crate) fn give_block(&self, block: Block, slots: u16) {
        lock(&self.blocks).give(block.slots, slot_bytes(slots) + PAGE);
    }

    /// Whether a block of another process lies in the file, where the system can map it.
    pub(crate) fn contains(&self, block: Block, slots: u16) -> bool {
        let inside = |start: u64, len: u64| {
            start.is_multiple_of(PAGE)
                && start
                    .checked_add(len)
                    .is_some_and(|end| end <= self.geometry.file_size)
        };
        inside(block.slots, slot_bytes(slots)) && inside(block.lines, PAGE)
    }

    /// The slots of a block.
    pub(crate) fn slots(&self, block: Block, slots: u16) -> NonNull<abi::Slot> {
        let len = u64::from(slots) * size_of::<abi::Slot>() as u64;
        self.view.shared(block.slots, len).cast()
    }

    /// The two index lines of a block, in the order of their places.
    pub(crate) fn lines(&self, block: Block) -> [NonNull<Line>; 2] {
        let line = |offset| self.view.shared(block.lines + offset, LINE).cast();
        [line(0), line(LINES)]
    }

    /// A header in front of the slots of a block.
    ///
    /// # Errors
    /// `ENOMEM`: there is no room. The system's refusal.
    pub(crate) fn frame(self: &Arc<Self>, block: Block, slots: u16) -> Result<Frame, Errno> {
        let shown = slot_bytes(slots);
        let len = PAGE + shown;
        let page = lock(&self.frames).take(len);
        let page = page.ok_or_else(|| refuse(Errno::NOMEM, NO_ROOM))?;
        let frame = Frame {
            region: Arc::clone(self),
            page,
            len,
        };
        let shown = self.view.show(page + PAGE, block.slots, shown);
        shown.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
        // SAFETY: the page is ours alone; a header of zeros is a valid one.
        unsafe { frame.header().write_bytes(0, 1) };
        Ok(frame)
    }

    /// Takes bytes of the private part for an interface; returns their offset in the view.
    pub(crate) fn take_private(&self, len: u64) -> Result<u64, Errno> {
        let start = lock(&self.frames).take(len);
        start.ok_or_else(|| refuse(Errno::NOMEM, NO_ROOM))
    }

    /// Returns them.
    pub(crate) fn give_private(&self, offset: u64, len: u64) {
        lock(&self.frames).give(offset, len);
    }

    /// Offset of buffer 0 in the view.
    pub(crate) fn pool_in_view(&self) -> u64 {
        PRIVATE + self.geometry.pool
    }

    /// Refuses rings for which there are not enough buffers, and says how many it takes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn need(&self, name: &Name, count: usize) -> Result<(), Errno> {
        let (free, all) = (lock(&self.pool).len(), self.geometry.buffers as usize);
        if free >= count {
            return Ok(());
        }
        let needed = all - free + count;
        let advice = match u32::try_from(needed) {
            Ok(needed) if BUFFERS_RANGE.contains(&needed) => {
                format!("{BUFFERS_VARIABLE}={needed} has enough")
            }
            _ => format!("{BUFFERS_VARIABLE} is at most {}", BUFFERS_RANGE.end()),
        };
        let why = format!(
            "{name}: its rings need {count} buffers, and {free} of {all} are free: {advice}"
        );
        Err(refuse(Errno::NOMEM, &why))
    }

    /// Takes `count` buffers, or none.
    ///
    /// # Errors
    /// `ENOMEM`: there are not so many.
    pub(crate) fn take_buffers(&self, count: usize) -> Result<Vec<u32>, Errno> {
        let mut pool = lock(&self.pool);
        if pool.len() < count {
            return Err(Errno::NOMEM);
        }
        Ok((0..count).filter_map(|_| pool.take()).collect())
    }

    /// Number of free buffers.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        lock(&self.pool).len()
    }

    /// Takes a buffer.
    pub(crate) fn take_buffer(&self) -> Option<u32> {
        lock(&self.pool).take()
    }

    /// Returns a buffer, whose number a program wrote.
    pub(crate) fn give_buffer(&self, index: u32) -> bool {
        lock(&self.pool).give(index)
    }

    /// Address of a buffer; `None`: there is no such buffer.
    pub(crate) fn buffer(&self, index: u32) -> Option<NonNull<u8>> {
        let size = u64::from(self.geometry.buffer_size);
        let offset = self.geometry.pool + u64::from(index) * size;
        (index < self.geometry.buffers).then(|| self.view.shared(offset, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_rooms_of_their_own_and_return_them() {
        let region = Arc::new(Region::with_buffers(1024, OWN_MEMORY).unwrap());
        let blocks = [64, 4096, 64].map(|slots| region.block(slots).unwrap());
        let frames: Vec<_> = blocks
            .iter()
            .zip([64, 4096, 64])
            .map(|(block, slots)| region.frame(*block, slots).unwrap())
            .collect();
        let mut places: Vec<_> = frames.iter().map(|frame| (frame.page, frame.len)).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        assert_eq!(frames[0].offset() % 128, 0);
        drop(frames);
        for (block, slots) in blocks.into_iter().zip([64, 4096, 64]) {
            assert!(region.contains(block, slots));
            region.give_block(block, slots);
        }
        assert_eq!(lock(&region.blocks).take(CONTROL), Some(0));
        assert_eq!(lock(&region.frames).take(PRIVATE), Some(0));
    }

    #[test]
    fn buffers_come_all_or_none() {
        let region = Region::with_buffers(1024, OWN_MEMORY).unwrap();
        assert_eq!(region.take_buffers(1023), Err(Errno::NOMEM));
        assert_eq!(region.take_buffers(1022).unwrap().len(), 1022);
        assert!(region.take_buffer().is_none());
        assert!(region.buffer(1023).is_some() && region.buffer(1024).is_none());
    }

    #[test]
    fn memory_of_others_is_checked() {
        let good = Geometry {
            file_size: 1 << 20,
            pool: 4096,
            buffer_size: 2048,
            buffers: 100,
        };
        let file = || sys::file::fixed("test", 1 << 20).unwrap();
        let region = Region::of_other(file(), good, 2).unwrap();
        assert_eq!(region.block(64), Err(Errno::NOMEM), "it is not ours");
        for bad in [
            Geometry {
                file_size: 2 << 20,
                ..good
            },
            Geometry {
                file_size: (1 << 20) - 1,
                ..good
            },
            Geometry {
                pool: 1 << 20,
                ..good
            },
            Geometry {
                pool: u64::MAX,
                ..good
            },
            Geometry {
                buffers: u32::MAX,
                ..good
            },
            Geometry {
                buffer_size: 0,
                ..good
            },
            Geometry {
                buffer_size: 2050,
                ..good
            },
            Geometry { pool: 4098, ..good },
            Geometry { pool: 4104, ..good },
        ] {
            assert!(Region::of_other(file(), bad, 2).is_err(), "{bad:?}");
        }
        let loose = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, 1 << 20).unwrap();
        assert!(Region::of_other(loose, good, 2).is_err(), "it may shrink");
        for (slots, lines, inside) in [
            (0, 4096, true),
            (1, 4096, false),
            (1 << 20, 4096, false),
            (0, 1 << 20, false),
            (0, u64::MAX - 4095, false),
        ] {
            assert_eq!(region.contains(Block { slots, lines }, 64), inside);
        }
    }
}
