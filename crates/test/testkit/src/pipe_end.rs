//! An end of a pipe, as far as it deals with the server at which the ends meet: it registers,
//! offers its memory, and comes back. Written from the layout of the messages, not with their code.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};

use crate::wait::LIMIT;

/// Bytes of the file.
const FILE: u64 = 1 << 20;

/// The master end, or the slave end.
pub const MASTER: u16 = 0;
/// See [`MASTER`].
pub const SLAVE: u16 = 1;

/// Memory of a pipe, and the descriptors that belong to it.
#[derive(Debug)]
pub struct PipeMemory {
    instance: u128,
    fds: [OwnedFd; 3],
}

impl PipeMemory {
    /// Makes memory of this name.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn new(instance: u128) -> io::Result<Self> {
        let file = memfd_create("pipe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, FILE)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC);
        Ok(Self {
            instance,
            fds: [file, event()?, event()?],
        })
    }

    /// Returns the name.
    #[must_use]
    pub fn instance(&self) -> u128 {
        self.instance
    }

    /// Returns the inode of the file.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.fds[0])?.st_ino)
    }

    fn message(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [4_u16, 1, 256, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.instance.to_le_bytes());
        bytes.extend(FILE.to_le_bytes());
        bytes.extend(0x1_0000_u64.to_le_bytes());
        bytes.extend(2048_u32.to_le_bytes());
        bytes.extend(100_u32.to_le_bytes());
        for offset in [0_u64, 0x1000, 0x2000, 0x3000] {
            bytes.extend(offset.to_le_bytes());
        }
        bytes
    }
}

/// An answer of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum PipeAnswer {
    /// The end is to offer memory.
    Create,
    /// The end has the memory of this name, in the file with this inode.
    Join(u128, u64),
    /// The reason of a refusal.
    Refused(String),
    /// The connection is closed.
    Closed,
}

/// A connection of an end.
#[derive(Debug)]
pub struct PipeEnd(OwnedFd);

impl PipeEnd {
    /// Connects to a socket of pipes.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn dial(path: &Path) -> io::Result<Self> {
        let (of, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::UNIX, of, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Connects and registers; `instance` is that of the memory that the end has, or 0.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn register(path: &Path, (id, end): (u16, u16), instance: u128) -> io::Result<Self> {
        let dialled = Self::dial(path)?;
        let mut bytes = Vec::new();
        for word in [1, 1, id, end] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(instance.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(b"testkit\0\0\0\0\0\0\0\0\0");
        dialled.send(&bytes, &[])?;
        Ok(dialled)
    }

    /// Registers with memory that the end has, and offers it if the server asks for it.
    ///
    /// # Errors
    /// The system's refusal; an answer other than that the end has its memory again.
    pub fn come_back(path: &Path, place: (u16, u16), memory: &PipeMemory) -> io::Result<Self> {
        let end = Self::register(path, place, memory.instance)?;
        let mut answer = end.answer()?;
        if answer == PipeAnswer::Create {
            end.offer(memory)?;
            answer = end.answer()?;
        }
        match answer {
            PipeAnswer::Join(instance, _) if instance == memory.instance => Ok(end),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    /// Offers memory.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn offer(&self, memory: &PipeMemory) -> io::Result<()> {
        self.send(&memory.message(), &memory.fds.each_ref().map(AsFd::as_fd))
    }

    /// Sends bytes, which need not be a message.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let bytes = [IoSlice::new(bytes)];
        sendmsg(&self.0, &bytes, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// There is none in time, or it is none.
    pub fn answer(&self) -> io::Result<PipeAnswer> {
        let limit: Timespec = LIMIT.try_into().map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (mut bytes, mut fds) = ([0; 256], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [IoSliceMut::new(&mut bytes)];
        let got = match recvmsg(&self.0, &mut buffer, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => got.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        read(&bytes[..got], &fds)
    }
}

fn read(bytes: &[u8], fds: &[OwnedFd]) -> io::Result<PipeAnswer> {
    let malformed = || {
        io::Error::other(format!(
            "an answer with {} descriptors: {bytes:?}",
            fds.len()
        ))
    };
    let kind = bytes.first_chunk().copied().map(u16::from_le_bytes);
    match (kind, bytes.len(), fds) {
        (None, 0, []) => Ok(PipeAnswer::Closed),
        (Some(2), 8, []) => Ok(PipeAnswer::Create),
        (Some(3), 80, [file, _, _]) => {
            let instance = bytes[8..].first_chunk().copied().map(u128::from_le_bytes);
            let inode = rustix::fs::fstat(file)?.st_ino;
            Ok(PipeAnswer::Join(instance.ok_or_else(malformed)?, inode))
        }
        (Some(5), 128, []) => {
            let length = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
            let reason = bytes.get(8..8 + length).ok_or_else(malformed)?;
            Ok(PipeAnswer::Refused(String::from_utf8_lossy(reason).into()))
        }
        _ => Err(malformed()),
    }
}
