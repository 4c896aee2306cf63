//! Loading the programs: for who may.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bpf::assembler::AssemblyError;
use bpf::btf::{Btf, BtfError, Id};
use bpf::{Attribute, Command, Instruction, LICENSE, number};

use crate::layout::SIZE;
use crate::program::Kernel;
use crate::{Method, Table};

// `linux/bpf.h`.
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RING: u32 = 27;
const MAPPABLE: u32 = 1 << 10;
const PROG_TYPE_TRACING: u32 = 26;
const ATTACH_RAW_TRACEPOINT: u32 = 23;
/// Words of `union bpf_attr` for a program, counted in 32 bits.
const LOG_LEVEL: usize = 6;
const LOG_SIZE: usize = 7;
const ATTACH_TYPE: usize = 17;
const ATTACH_TO: usize = 27;
/// The same, counted in 64 bits.
const LOG: usize = 4;
/// Bytes of what the kernel says of a program that it refuses.
const LOG_BYTES: usize = 64 << 10;

/// The number of the initial PID namespace (`PROC_PID_INIT_INO`): elsewhere threads have other ids than the kernel knows.
const INITIAL: &str = "pid:[4026531836]";

/// Why the kernel does not keep states for us.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Threads have other ids here than in the kernel.
    #[error("this is not the host's PID namespace")]
    Namespace,
    /// What the kernel says of itself.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// A mistake in the programs.
    #[error("the program: {0}")]
    Assembly(#[from] AssemblyError),
    /// This process has not the rights.
    #[error("no right to load BPF programs ({0})")]
    Rights(io::Error),
    /// The kernel does not run the program.
    #[error("the kernel refuses the BPF program ({error}): {why}")]
    Refused {
        /// Its answer.
        error: io::Error,
        /// The last that it says of it.
        why: String,
    },
    /// Any other refusal of the system.
    #[error("BPF: {0}")]
    System(#[from] io::Error),
}

/// The programs, which run until this is dropped.
#[derive(Debug)]
pub struct Programs {
    /// What they write.
    pub table: Table,
    /// What becomes readable when a bell is rung; see [`crate::bells`].
    pub ring: OwnedFd,
    _links: [OwnedFd; 2],
}

impl Programs {
    /// Loads and starts them.
    ///
    /// # Errors
    /// Why that cannot be done; nothing was changed then.
    pub fn load() -> Result<Self, LoadError> {
        // The cheapest question comes first: most who may not load programs may not make maps.
        let map = make_map().map_err(rights)?;
        let namespace = std::fs::read_link("/proc/self/ns/pid")?;
        if namespace.as_os_str() != INITIAL {
            return Err(LoadError::Namespace);
        }
        let kernel = Kernel::of(&Btf::of_kernel()?)?;
        // The kernel maps for nobody what cannot be written by its descriptor, and who writes deceives only who reads.
        let reader = map.try_clone()?;
        let table = Table::over(map.as_fd(), reader, Method::Kernel)?;
        let ring = make_ring()?;
        let programs = [
            (kernel.switch, kernel.at_switch(map.as_fd(), ring.as_fd())?),
            (kernel.wakeup, kernel.at_wakeup(map.as_fd())?),
        ];
        let [switch, wakeup] = programs.map(|(tracepoint, code)| attach(tracepoint, &code));
        let links = [switch?, wakeup?];
        visit_cores();
        Ok(Self {
            table,
            ring,
            _links: links,
        })
    }
}

fn rights(error: io::Error) -> LoadError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => LoadError::Rights(error),
        _ => LoadError::System(error),
    }
}

/// One value in which all is, so that programs reach it by its address.
fn make_map() -> io::Result<OwnedFd> {
    // Kind, bytes of a key, bytes of a value, entries, flags.
    let mut attribute = Attribute::new(&[MAP_TYPE_ARRAY, 4, SIZE as u32, 1, MAPPABLE]);
    attribute.make(Command::MapCreate)
}

/// A ring for records of bells: few, because whoever hears one takes all.
fn make_ring() -> io::Result<OwnedFd> {
    // Kind, bytes of a key, bytes of a value, bytes of the ring: whole pages.
    let bytes = rustix::param::page_size() as u32;
    let mut attribute = Attribute::new(&[MAP_TYPE_RING, 0, 0, bytes]);
    attribute.make(Command::MapCreate)
}

/// Has the kernel run a program at a tracepoint, until the link is closed.
fn attach(tracepoint: Id, code: &[Instruction]) -> Result<OwnedFd, LoadError> {
    let program = load(tracepoint, code, &mut []);
    let program = program.map_err(|error| refused(tracepoint, code, error))?;
    let mut attribute = Attribute::new(&[0, 0, number(&program)]);
    Ok(attribute.make(Command::RawTracepointOpen)?)
}

fn load(tracepoint: Id, code: &[Instruction], log: &mut [u8]) -> io::Result<OwnedFd> {
    // Kind, instructions, pointers to them and to the license.
    let mut attribute = Attribute::new(&[PROG_TYPE_TRACING, code.len() as u32])
        .point(1, code)
        .point(2, &LICENSE)
        .number(ATTACH_TYPE, ATTACH_RAW_TRACEPOINT)
        .number(ATTACH_TO, tracepoint);
    if !log.is_empty() {
        attribute = attribute
            .number(LOG_LEVEL, 1)
            .number(LOG_SIZE, log.len() as u32)
            .point_mut(LOG, log);
    }
    attribute.make(Command::ProgramLoad)
}

/// Why a program was refused: asks once more, for the reason.
fn refused(tracepoint: Id, code: &[Instruction], error: io::Error) -> LoadError {
    let mut log = vec![0; LOG_BYTES];
    // Refused as before.
    let _ = load(tracepoint, code, &mut log);
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    // The last line counts instructions.
    let mut lines = text
        .lines()
        .rev()
        .filter(|line| !line.starts_with("processed "));
    match lines.next() {
        None => rights(error),
        Some(why) => LoadError::Refused {
            error,
            why: why.to_owned(),
        },
    }
}

/// A core that idles does so without a context switch, for ever if nothing happens: nobody would know of it. So a thread goes
/// to each core once. Where it may not go, the core is known from its next switch on.
fn visit_cores() {
    let visit = || {
        for core in 0..rustix::thread::CpuSet::MAX_CPU.min(crate::layout::CORES) {
            let mut only = rustix::thread::CpuSet::new();
            only.set(core);
            // Cores that are not there, and those of others.
            let _ = rustix::thread::sched_setaffinity(None, &only);
        }
    };
    // Without it, cores are known later.
    let visitor = std::thread::Builder::new()
        .name("visitor".into())
        .spawn(visit);
    if let Ok(visitor) = visitor {
        let _ = visitor.join();
    }
}
