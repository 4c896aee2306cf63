//! The prefilter's table and the programs that read it, for one interface: see the crate `offload`.
//!
//! Maps and programs are made together, which needs `CAP_BPF` and `CAP_PERFMON`. A program is
//! attached to packet sockets, or to an interface with `AF_XDP` sockets, later and without them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use bpf::object::{self, ObjectError};
use bpf::{Attribute, Command, LoadError};
use mapping::SharedWords;
use offload::connections;
use offload::layout::SIZE;
use serde::{Deserialize, Serialize};

// `linux/bpf.h`.
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const PROG_TYPE_XDP: u32 = 6;

/// Reason why there is no prefilter.
#[derive(Debug, thiserror::Error)]
pub enum PrefilterError {
    /// The kernel has no map or program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A mistake in the object.
    #[error("the program: {0}")]
    Object(#[from] ObjectError),
    /// Any other error of a system call.
    #[error("BPF: {0}")]
    System(#[from] io::Error),
}

/// A table with loaded programs, for one port: its interface may be opened any
/// number of times.
#[derive(Debug)]
pub struct Prefilter {
    table: TableMap,
    socket: OwnedFd,
    /// `None` where the kernel has no `AF_XDP` sockets.
    xdp: Option<XdpFilter>,
}

/// A program for an interface with `AF_XDP` sockets, and the map of these sockets that it uses.
#[derive(Debug)]
pub(crate) struct XdpFilter {
    pub(crate) sockets: OwnedFd,
    pub(crate) program: OwnedFd,
}

impl XdpFilter {
    /// Returns copies of its descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            sockets: self.sockets.try_clone()?,
            program: self.program.try_clone()?,
        })
    }
}

/// Maximum number of receive queues of an interface with an XDP program of a prefilter.
pub(crate) const QUEUES: u16 = 64;
/// `BPF_MAP_TYPE_XSKMAP`.
const MAP_TYPE_XSKMAP: u32 = 17;

/// Descriptors of a [`Prefilter`], for a supervisor that replaces another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PrefilterParts<Fd> {
    /// The map with the table.
    pub table: Fd,
    /// The program for packet sockets.
    pub socket: Fd,
    /// The map of `AF_XDP` sockets, and the program that uses it.
    pub xdp: Option<(Fd, Fd)>,
}

impl Prefilter {
    /// Makes a table and loads its programs, which ask a filter of connections.
    ///
    /// # Errors
    /// The rights are missing, or the kernel refuses the program.
    pub fn load(connections: BorrowedFd<'_>) -> Result<Self, PrefilterError> {
        let table = TableMap::new()?;
        let socket = table.socket_program(connections)?;
        let xdp = table.xdp_filter(connections);
        let missing = |error: &PrefilterError| tracing::debug!("no prefilter with XDP: {error}");
        Ok(Self {
            xdp: xdp.inspect_err(missing).ok(),
            table,
            socket,
        })
    }

    /// Returns the map with the table, for its writer.
    #[must_use]
    pub fn table(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }

    /// Returns whether its programs are of this build's layout. Those of a supervisor before this
    /// one may be of another, and control leaves their tables alone.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let memory = SharedWords::<SIZE>::map(self.table.as_fd(), true);
        memory.is_ok_and(|memory| offload::is_table(&memory))
    }

    /// Empties the table and its counters, for another port.
    ///
    /// # Errors
    /// The system's refusal, or programs of another layout, which have no other use.
    pub fn clear(&self) -> io::Result<()> {
        let memory = SharedWords::<SIZE>::map(self.table.as_fd(), true)?;
        if !offload::is_table(&memory) {
            return Err(io::Error::other("its programs are of another version"));
        }
        for at in (0..SIZE).step_by(8) {
            memory.word(at).store(0, Relaxed);
        }
        offload::create(&memory);
        Ok(())
    }

    /// Has a packet socket receive no frame that meets an entry (`SO_ATTACH_BPF`, socket(7)).
    pub(crate) fn attach(&self, socket: &OwnedFd) -> io::Result<()> {
        set(socket, libc::SO_ATTACH_BPF, self.socket.as_raw_fd())
    }

    /// Returns the program for an interface with `AF_XDP` sockets.
    pub(crate) const fn xdp(&self) -> Option<&XdpFilter> {
        self.xdp.as_ref()
    }

    /// Returns its descriptors. `pass` makes of a descriptor what the parts have instead.
    pub fn parts<'a, Fd>(
        &'a self,
        mut pass: impl FnMut(BorrowedFd<'a>) -> Fd,
    ) -> PrefilterParts<Fd> {
        PrefilterParts {
            table: pass(self.table.as_fd()),
            socket: pass(self.socket.as_fd()),
            xdp: self.xdp.as_ref().map(|xdp| {
                let sockets = pass(xdp.sockets.as_fd());
                (sockets, pass(xdp.program.as_fd()))
            }),
        }
    }

    /// Returns the prefilter with these descriptors. `take` has them.
    ///
    /// # Errors
    /// The first error of `take`.
    pub fn of<Fd, E>(
        parts: PrefilterParts<Fd>,
        mut take: impl FnMut(Fd) -> Result<OwnedFd, E>,
    ) -> Result<Self, E> {
        Ok(Self {
            table: TableMap(take(parts.table)?),
            socket: take(parts.socket)?,
            xdp: match parts.xdp {
                Some((sockets, program)) => Some(XdpFilter {
                    sockets: take(sockets)?,
                    program: take(program)?,
                }),
                None => None,
            },
        })
    }
}

/// Has a packet socket receive all frames again.
pub(crate) fn detach(socket: &OwnedFd) -> io::Result<()> {
    match set(socket, libc::SO_DETACH_FILTER, 0) {
        // There is no program.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn set(socket: &OwnedFd, option: i32, value: i32) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    let (fd, value) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: the value has the size that is given, and the kernel only reads it.
    match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The filter's name in the object with the programs.
const CONNECTIONS: &str = ".bss.connections";

/// Makes a map with a filter of connections, which knows nothing.
///
/// # Errors
/// The rights are missing, or the system refuses.
pub fn connection_filter() -> Result<OwnedFd, PrefilterError> {
    let map = bpf::load::memory(connections::SIZE as u32)?;
    let memory = SharedWords::<{ connections::SIZE }>::map(map.as_fd(), true)?;
    connections::create(&memory);
    Ok(map)
}

/// A table in the memory of a BPF map.
#[derive(Debug)]
pub struct TableMap(OwnedFd);

impl TableMap {
    /// Makes an empty table.
    ///
    /// # Errors
    /// The rights are missing, or the system refuses.
    pub fn new() -> Result<Self, PrefilterError> {
        let map = bpf::load::memory(SIZE as u32)?;
        offload::create(&SharedWords::<SIZE>::map(map.as_fd(), true)?);
        Ok(Self(map))
    }

    /// Loads the program for packet sockets, which reads this table and a filter of connections.
    ///
    /// # Errors
    /// The rights are missing, or the kernel refuses the program.
    pub fn socket_program(&self, connections: BorrowedFd<'_>) -> Result<OwnedFd, PrefilterError> {
        let maps = [(CONNECTIONS, connections)];
        self.load(PROG_TYPE_SOCKET_FILTER, "prefilter_socket", &maps)
    }

    /// Loads the program for an interface with `AF_XDP` sockets, which reads this table and a
    /// filter of connections. It redirects frames without an entry to `sockets`, by receive queue.
    ///
    /// # Errors
    /// As for sockets.
    pub fn xdp_program(
        &self,
        connections: BorrowedFd<'_>,
        sockets: BorrowedFd<'_>,
    ) -> Result<OwnedFd, PrefilterError> {
        let maps = [(CONNECTIONS, connections), ("sockets", sockets)];
        self.load(PROG_TYPE_XDP, "prefilter_xdp", &maps)
    }

    /// Makes a map of sockets, and loads the program that redirects to them.
    fn xdp_filter(&self, connections: BorrowedFd<'_>) -> Result<XdpFilter, PrefilterError> {
        // Kind, bytes of a key, bytes of a value, entries.
        let mut attribute = Attribute::new(&[MAP_TYPE_XSKMAP, 4, 4, QUEUES.into()]);
        let sockets = attribute
            .make(Command::MapCreate)
            .map_err(LoadError::from)?;
        let program = self.xdp_program(connections, sockets.as_fd())?;
        Ok(XdpFilter { sockets, program })
    }

    fn load(
        &self,
        kind: u32,
        name: &str,
        others: &[(&str, BorrowedFd<'_>)],
    ) -> Result<OwnedFd, PrefilterError> {
        let mut maps = vec![(".bss.table", self.0.as_fd())];
        maps.extend_from_slice(others);
        let code = object::program(offload::PROGRAMS, name, &maps)?;
        Ok(bpf::load::program(kind, &code, &[])?)
    }
}

impl AsFd for TableMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Runs a program on a frame and returns its verdict: for tests.
///
/// # Errors
/// The rights are missing.
#[cfg(any(test, feature = "test-utils"))]
pub fn run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    // The program, its result; the bytes of the frame and of a copy, pointers to them.
    let mut attribute = Attribute::new(&[bpf::number(&program), 0, frame.len() as u32, 0]);
    attribute = attribute.point(2, frame);
    attribute.run(Command::ProgramTestRun)?;
    Ok(attribute.result(1))
}

#[cfg(test)]
mod tests;
