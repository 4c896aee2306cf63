//! Loading of the BPF programs, for processes with the rights.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bpf::btf::{Btf, BtfError, Id};
use bpf::object::ObjectError;
use bpf::{Attribute, Command, Instruction, number};

use crate::Table;
use crate::layout::SIZE;
use crate::program::{self, Kernel};

// `linux/bpf.h`.
const MAP_TYPE_RING: u32 = 27;
const PROG_TYPE_TRACING: u32 = 26;
/// Needs no type information, so that KVM may be a module.
const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const ATTACH_RAW_TRACEPOINT: u32 = 23;
/// Places of fields in `union bpf_attr` for a program, counted in 32 bits.
const ATTACH_TYPE: usize = 17;
const ATTACH_TO: usize = 27;

/// The end of a halt, `include/trace/events/kvm.h` of Linux.
const HALT: &CStr = c"kvm_vcpu_wakeup";

/// The number of the initial PID namespace (`PROC_PID_INIT_INO`): elsewhere threads have other ids
/// than in the kernel.
const INITIAL: &str = "pid:[4026531836]";

/// Reason why the kernel does not keep states.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Threads have other ids here than in the kernel.
    #[error("this is not the host's PID namespace")]
    Namespace,
    /// The kernel's type information does not fit.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// A mistake in the object.
    #[error("the program: {0}")]
    Object(#[from] ObjectError),
    /// KVM was not loaded when the program was to be attached.
    #[error("KVM was not loaded when Lasthop started; restart Lasthop once it is")]
    NoKvm,
    /// The kernel has no map or program.
    #[error(transparent)]
    Bpf(#[from] bpf::LoadError),
    /// Any other error of a system call.
    #[error("BPF: {0}")]
    System(#[from] io::Error),
}

/// The loaded programs, which run until this is dropped.
#[derive(Debug)]
pub struct Programs {
    /// The memory that they write.
    pub table: Table,
    /// Becomes readable at a block event; see [`crate::BlockEvents`].
    pub ring: OwnedFd,
    /// Descriptors by name that keep the programs attached.
    links: Descriptors,
    /// Reason why halts of vCPUs are not counted. An adopter does not know it.
    pub no_halts: Option<LoadError>,
}

/// Descriptors by name, as a process hands them to its successor.
pub type Descriptors = BTreeMap<String, OwnedFd>;

/// Names of the memory and the ring among [`Descriptors`]; the others are links.
const STATES: &str = "states";
const RING: &str = "ring";

impl Programs {
    /// Returns memory that no program writes: for tests of users.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn imagined() -> io::Result<Self> {
        let memory = sys::file::fixed("lasthop-states", SIZE as u64)?;
        Ok(Self {
            table: Table::over(memory.as_fd(), memory.try_clone()?)?,
            ring: sys::file::fixed("lasthop-ring", 0)?,
            links: Descriptors::new(),
            no_halts: None,
        })
    }

    /// Returns all descriptors, for a successor of this process ([`Programs::adopt`]).
    pub fn descriptors(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        let own = [(STATES, self.table.reader()), (RING, self.ring.as_fd())];
        let links = self.links.iter();
        own.into_iter()
            .chain(links.map(|(name, link)| (name.as_str(), link.as_fd())))
    }

    /// Adopts the programs of a predecessor, which run on. Links of unknown names stay, too: they
    /// may be needed after a rollback.
    ///
    /// # Errors
    /// Memory of another layout ([`io::ErrorKind::InvalidData`]), or the error of a system call;
    /// the descriptors are as before.
    pub fn adopt(descriptors: &mut Descriptors) -> io::Result<Self> {
        let other = || io::Error::from(io::ErrorKind::InvalidData);
        let copy = |name| descriptors.get(name).ok_or_else(other)?.try_clone();
        let (memory, ring): (OwnedFd, OwnedFd) = (copy(STATES)?, copy(RING)?);
        let table = Table::adopt(memory)?;
        let mut links = std::mem::take(descriptors);
        links.retain(|name, _| name != STATES && name != RING);
        Ok(Self {
            table,
            ring,
            links,
            no_halts: None,
        })
    }

    /// Loads and starts the programs. Without KVM there are states, and no halts.
    ///
    /// # Errors
    /// The reason; nothing was changed then.
    pub fn load() -> Result<Self, LoadError> {
        // The cheapest check comes first: most processes without the right to load programs cannot
        // create maps either.
        let map = bpf::load::memory(SIZE as u32)?;
        let namespace = std::fs::read_link("/proc/self/ns/pid")?;
        if namespace.as_os_str() != INITIAL {
            return Err(LoadError::Namespace);
        }
        let kernel = Kernel::of(&Btf::of_kernel()?)?;
        // The kernel maps no memory for a descriptor without write permission, and a writer
        // deceives only readers.
        let reader = map.try_clone()?;
        let table = Table::over(map.as_fd(), reader)?;
        let ring = make_ring()?;
        let switch = kernel.at_switch(map.as_fd(), ring.as_fd())?;
        let wakeup = kernel.at_wakeup(map.as_fd())?;
        let mut links = Descriptors::from([
            ("sched_switch".to_owned(), attach(kernel.switch, &switch)?),
            ("sched_wakeup".to_owned(), attach(kernel.wakeup, &wakeup)?),
        ]);
        let no_halts = match count_halts(map.as_fd()) {
            Ok(link) => {
                links.insert(HALT.to_string_lossy().into_owned(), link);
                table.set_counts_halts();
                None
            }
            Err(error) => Some(error),
        };
        Ok(Self {
            table,
            ring,
            links,
            no_halts,
        })
    }
}

/// Attaches the program that counts halts, until the link is closed.
fn count_halts(map: BorrowedFd<'_>) -> Result<OwnedFd, LoadError> {
    let program = load_raw(&program::at_halt(map)?)?;
    attach_raw(&program, HALT)?.ok_or(LoadError::NoKvm)
}

/// Loads a program for raw tracepoints.
pub(crate) fn load_raw(code: &[Instruction]) -> Result<OwnedFd, LoadError> {
    Ok(bpf::load::program(PROG_TYPE_RAW_TRACEPOINT, code, &[])?)
}

/// Attaches such a program to a tracepoint, until the link is closed. `None`: the kernel has no
/// such tracepoint.
pub(crate) fn attach_raw(
    program: &OwnedFd,
    tracepoint: &CStr,
) -> Result<Option<OwnedFd>, LoadError> {
    // The name, and the program.
    let attribute = Attribute::new(&[0, 0, number(program)]);
    let mut attribute = attribute.point(0, tracepoint.to_bytes_with_nul());
    match attribute.make(Command::RawTracepointOpen) {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(bpf::LoadError::from(error).into()),
    }
}

/// Creates a small ring buffer for records: a woken thread consumes all.
pub(crate) fn make_ring() -> io::Result<OwnedFd> {
    // Kind, bytes of a key, bytes of a value, bytes of the ring: whole pages.
    let bytes = rustix::param::page_size() as u32;
    let mut attribute = Attribute::new(&[MAP_TYPE_RING, 0, 0, bytes]);
    attribute.make(Command::MapCreate)
}

/// Attaches a program to a tracepoint, until the link is closed.
pub(crate) fn attach(tracepoint: Id, code: &[Instruction]) -> Result<OwnedFd, LoadError> {
    let fields = [
        (ATTACH_TYPE, ATTACH_RAW_TRACEPOINT),
        (ATTACH_TO, tracepoint),
    ];
    let program = bpf::load::program(PROG_TYPE_TRACING, code, &fields)?;
    let mut attribute = Attribute::new(&[0, 0, number(&program)]);
    Ok(attribute.make(Command::RawTracepointOpen)?)
}
