//! The requests, one function each, in the order of their codes.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use mapping::Mapping;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::{FrontEnd, FrontError, Message, request};
use crate::driver::DriverQueue;
use crate::features::protocol;
use crate::guest_ram::{GuestRam, RamRegion, RegionSpec};

/// In SET_VRING_KICK, _CALL and _ERR: no file is attached.
const NO_FD: u64 = 0x100;
const LOG_PAGE: u64 = 4096;

/// The addresses in SET_VRING_ADDR: the front end's user addresses or, behind an IOMMU, the
/// device's, and a guest-physical address for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VringAddr {
    /// Descriptor table or ring.
    pub desc: u64,
    /// Used ring or device event suppression.
    pub used: u64,
    /// Available ring or driver event suppression.
    pub avail: u64,
    /// Guest-physical address of the used ring, when writes to it are to be logged.
    pub log: Option<u64>,
}

impl VringAddr {
    /// The addresses of a driver queue.
    #[must_use]
    pub fn of(ram: &GuestRam, queue: &DriverQueue) -> Self {
        let addrs = queue.addrs();
        Self {
            desc: ram.ring_address(addrs.desc),
            used: ram.ring_address(addrs.device),
            avail: ram.ring_address(addrs.driver),
            log: None,
        }
    }
}

/// The memory in which a back end tracks what it has taken.
#[derive(Debug)]
pub struct Inflight {
    /// Bytes.
    pub size: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Queues it is for.
    pub queues: u16,
    /// Entries of each queue.
    pub queue_size: u16,
    /// The file.
    pub fd: OwnedFd,
}

/// A dirty log in a file of its own: one bit for each 4096 bytes of guest memory.
#[derive(Debug)]
pub struct DirtyFile {
    fd: OwnedFd,
    size: u64,
    offset: u64,
    mapping: Mapping,
}

impl DirtyFile {
    /// A clean log for guest addresses below `end`, at `offset` in its file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn new(end: u64, offset: u64) -> io::Result<Self> {
        let size = end.div_ceil(LOG_PAGE).div_ceil(64) * 8;
        let fd = memfd_create("dirty-log", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, offset + size)?;
        let mapping = Mapping::shared(&fd, size, offset).map_err(io::Error::other)?;
        Ok(Self {
            fd,
            size,
            offset,
            mapping,
        })
    }

    /// The file, for hostile tests.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.fd
    }

    /// All pages that were written since they were taken last, as a VMM takes them: bits that are
    /// read are cleared, and none is lost.
    #[must_use]
    pub fn take(&self) -> BTreeSet<u64> {
        let mut pages = BTreeSet::new();
        for at in 0..self.mapping.len() {
            // SAFETY: `at` is inside the mapping, which lives as long as `self`; the back end sets
            // bits with atomic instructions, too.
            let byte = unsafe { AtomicU8::from_ptr(self.mapping.as_ptr().add(at)) };
            if byte.load(Ordering::Relaxed) != 0 {
                let bits = byte.swap(0, Ordering::AcqRel);
                let set = (0..8).filter(|bit| bits & 1 << bit != 0);
                pages.extend(set.map(|bit| 8 * at as u64 + bit));
            }
        }
        pages
    }

    /// Returns whether the page of guest address `gpa` was written.
    ///
    /// # Panics
    /// When the address lies behind the log.
    #[must_use]
    pub fn is_dirty(&self, gpa: u64) -> bool {
        let page = gpa / LOG_PAGE;
        let mut byte = [0];
        let n =
            rustix::io::pread(&self.fd, &mut byte, self.offset + page / 8).expect("a readable log");
        assert!(
            n == 1 && page / 8 < self.size,
            "{gpa:#x} lies behind the log"
        );
        byte[0] & 1 << (page % 8) != 0
    }

    /// All pages that were written, as page numbers.
    ///
    /// # Panics
    /// When the file cannot be read.
    #[must_use]
    pub fn dirty_pages(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.size as usize];
        let n = rustix::io::pread(&self.fd, &mut bytes, self.offset).expect("a readable log");
        let set = |page: &u64| bytes[(page / 8) as usize] & 1 << (page % 8) != 0;
        (0..n as u64 * 8).filter(set).collect()
    }
}

fn state(index: u32, num: u32) -> Vec<u8> {
    [index, num].map(u32::to_le_bytes).concat()
}

fn region(spec: &RegionSpec) -> Vec<u8> {
    [spec.gpa, spec.size, spec.uva, spec.file_offset]
        .map(u64::to_le_bytes)
        .concat()
}

fn fd_of(region: &RamRegion) -> BorrowedFd<'_> {
    region
        .fd()
        .expect("memory in a file: heap memory cannot be shared with a back end")
}

impl FrontEnd {
    fn ask_u64(&mut self, code: u32) -> Result<u64, FrontError> {
        self.ask(code, &[], &[])?.u64(code)
    }

    fn tell_u64(&mut self, code: u32, value: u64) -> Result<(), FrontError> {
        self.tell(code, &value.to_le_bytes(), &[])
    }

    /// GET_FEATURES.
    ///
    /// # Errors
    /// When the conversation fails, as with all requests here.
    pub fn get_features(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_FEATURES)
    }

    /// SET_FEATURES; remembers them as agreed.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_features(&mut self, features: u64) -> Result<(), FrontError> {
        self.tell_u64(request::SET_FEATURES, features)?;
        self.features = features;
        Ok(())
    }

    /// SET_OWNER.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_owner(&mut self) -> Result<(), FrontError> {
        self.tell(request::SET_OWNER, &[], &[])
    }

    /// SET_MEM_TABLE with all regions.
    ///
    /// # Errors
    /// As all requests.
    ///
    /// # Panics
    /// When the memory is on the heap.
    pub fn set_mem_table(&mut self, ram: &GuestRam) -> Result<(), FrontError> {
        let mut body = state(ram.regions().len() as u32, 0);
        ram.regions()
            .iter()
            .for_each(|r| body.extend(region(&r.spec())));
        let fds: Vec<BorrowedFd<'_>> = ram.regions().iter().map(|r| fd_of(r)).collect();
        self.tell(request::SET_MEM_TABLE, &body, &fds)
    }

    /// SET_LOG_BASE; with LOG_SHMFD it has an answer of its own.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_log_base(&mut self, log: &DirtyFile) -> Result<(), FrontError> {
        let body = [log.size, log.offset].map(u64::to_le_bytes).concat();
        if self.protocol & protocol::LOG_SHMFD == 0 {
            return self.tell(request::SET_LOG_BASE, &body, &[log.fd.as_fd()]);
        }
        self.ask(request::SET_LOG_BASE, &body, &[log.fd.as_fd()])
            .map(|_| ())
    }

    /// SET_VRING_NUM: entries of the queue.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_vring_num(&mut self, index: u32, num: u32) -> Result<(), FrontError> {
        self.tell(request::SET_VRING_NUM, &state(index, num), &[])
    }

    /// SET_VRING_ADDR.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_vring_addr(&mut self, index: u32, addr: &VringAddr) -> Result<(), FrontError> {
        let mut body = state(index, u32::from(addr.log.is_some()));
        for field in [addr.desc, addr.used, addr.avail, addr.log.unwrap_or(0)] {
            body.extend(field.to_le_bytes());
        }
        self.tell(request::SET_VRING_ADDR, &body, &[])
    }

    /// SET_VRING_BASE.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_vring_base(&mut self, index: u32, base: u32) -> Result<(), FrontError> {
        self.tell(request::SET_VRING_BASE, &state(index, base), &[])
    }

    /// GET_VRING_BASE, which also stops the queue.
    ///
    /// # Errors
    /// As all requests.
    pub fn get_vring_base(&mut self, index: u32) -> Result<u32, FrontError> {
        let code = request::GET_VRING_BASE;
        let answer = self.ask(code, &state(index, 0), &[])?;
        let pair = answer.u64(code)?;
        if pair as u32 == index {
            Ok((pair >> 32) as u32)
        } else {
            Err(FrontError::bad(code, &answer, "another queue"))
        }
    }

    fn vring_fd(
        &mut self,
        code: u32,
        index: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontError> {
        let value = u64::from(index) | if fd.is_none() { NO_FD } else { 0 };
        self.tell(code, &value.to_le_bytes(), fd.as_slice())
    }

    /// SET_VRING_KICK; without a file the back end polls.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_vring_kick(
        &mut self,
        index: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontError> {
        self.vring_fd(request::SET_VRING_KICK, index, fd)
    }

    /// SET_VRING_CALL; without a file the front end polls.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_vring_call(
        &mut self,
        index: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontError> {
        self.vring_fd(request::SET_VRING_CALL, index, fd)
    }

    /// SET_VRING_ERR.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_vring_err(
        &mut self,
        index: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontError> {
        self.vring_fd(request::SET_VRING_ERR, index, fd)
    }

    /// GET_PROTOCOL_FEATURES.
    ///
    /// # Errors
    /// As all requests.
    pub fn get_protocol_features(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_PROTOCOL_FEATURES)
    }

    /// SET_PROTOCOL_FEATURES; remembers them as agreed.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), FrontError> {
        self.tell_u64(request::SET_PROTOCOL_FEATURES, features)?;
        self.protocol = features;
        Ok(())
    }

    /// GET_QUEUE_NUM: queue pairs that the back end can have.
    ///
    /// # Errors
    /// As all requests.
    pub fn get_queue_num(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_QUEUE_NUM)
    }

    /// SET_VRING_ENABLE.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_vring_enable(&mut self, index: u32, on: bool) -> Result<(), FrontError> {
        self.tell(request::SET_VRING_ENABLE, &state(index, u32::from(on)), &[])
    }

    /// SEND_RARP: announce `mac` after migration.
    ///
    /// # Errors
    /// As all requests.
    pub fn send_rarp(&mut self, mac: [u8; 6]) -> Result<(), FrontError> {
        let mut body = [0; 8];
        body[..6].copy_from_slice(&mac);
        self.tell(request::SEND_RARP, &body, &[])
    }

    /// NET_SET_MTU.
    ///
    /// # Errors
    /// As all requests.
    pub fn net_set_mtu(&mut self, mtu: u64) -> Result<(), FrontError> {
        self.tell_u64(request::NET_SET_MTU, mtu)
    }

    /// GET_CONFIG: `size` bytes of the device's configuration space from `offset`.
    ///
    /// # Errors
    /// As all requests.
    pub fn get_config(&mut self, offset: u32, size: u32) -> Result<Vec<u8>, FrontError> {
        let mut body = [offset, size, 0].map(u32::to_le_bytes).concat();
        body.resize(12 + size as usize, 0);
        let answer = self.ask(request::GET_CONFIG, &body, &[])?;
        match answer.body.get(12..) {
            Some(config) if config.len() == size as usize => Ok(config.to_vec()),
            _ => Err(FrontError::bad(
                request::GET_CONFIG,
                &answer,
                "another size",
            )),
        }
    }

    /// GET_INFLIGHT_FD.
    ///
    /// # Errors
    /// As all requests.
    pub fn get_inflight(&mut self, queues: u16, queue_size: u16) -> Result<Inflight, FrontError> {
        let code = request::GET_INFLIGHT_FD;
        let answer = self.ask(code, &inflight(0, 0, queues, queue_size), &[])?;
        parse_inflight(answer).map_err(|(answer, why)| FrontError::bad(code, &answer, why))
    }

    /// SET_INFLIGHT_FD.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_inflight(&mut self, memory: &Inflight) -> Result<(), FrontError> {
        let body = inflight(memory.size, memory.offset, memory.queues, memory.queue_size);
        self.tell(request::SET_INFLIGHT_FD, &body, &[memory.fd.as_fd()])
    }

    /// RESET_DEVICE.
    ///
    /// # Errors
    /// As all requests.
    pub fn reset_device(&mut self) -> Result<(), FrontError> {
        self.tell(request::RESET_DEVICE, &[], &[])
    }

    /// GET_MAX_MEM_SLOTS.
    ///
    /// # Errors
    /// As all requests.
    pub fn get_max_mem_slots(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_MAX_MEM_SLOTS)
    }

    /// ADD_MEM_REG.
    ///
    /// # Errors
    /// As all requests.
    ///
    /// # Panics
    /// When the memory is on the heap.
    pub fn add_mem_reg(&mut self, memory: &RamRegion) -> Result<(), FrontError> {
        let body = [vec![0; 8], region(&memory.spec())].concat();
        self.tell(request::ADD_MEM_REG, &body, &[fd_of(memory)])
    }

    /// REM_MEM_REG.
    ///
    /// # Errors
    /// As all requests.
    pub fn rem_mem_reg(&mut self, spec: &RegionSpec) -> Result<(), FrontError> {
        let body = [vec![0; 8], region(spec)].concat();
        self.tell(request::REM_MEM_REG, &body, &[])
    }

    /// SET_STATUS: the virtio device status.
    ///
    /// # Errors
    /// As all requests.
    pub fn set_status(&mut self, status: u64) -> Result<(), FrontError> {
        self.tell_u64(request::SET_STATUS, status)
    }

    /// GET_STATUS.
    ///
    /// # Errors
    /// As all requests.
    pub fn get_status(&mut self) -> Result<u64, FrontError> {
        self.ask_u64(request::GET_STATUS)
    }

    /// Sets a queue up and starts it: size, base, addresses, call and kick, as QEMU does. It is
    /// still to be enabled.
    ///
    /// # Errors
    /// As all requests.
    pub fn start_vring(
        &mut self,
        index: u32,
        (ram, queue): (&GuestRam, &DriverQueue),
        base: u32,
        (kick, call): (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>),
    ) -> Result<(), FrontError> {
        self.set_vring_num(index, u32::from(queue.options().size))?;
        self.set_vring_base(index, base)?;
        self.set_vring_addr(index, &VringAddr::of(ram, queue))?;
        self.set_vring_call(index, call)?;
        self.set_vring_kick(index, kick)
    }
}

/// The fields take 20 bytes; QEMU and DPDK send 24, their structure's padding included, and so do
/// we.
fn inflight(size: u64, offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let mut body = [size, offset].map(u64::to_le_bytes).concat();
    body.extend([queues, queue_size, 0, 0].map(u16::to_le_bytes).concat());
    body
}

fn parse_inflight(mut answer: Message) -> Result<Inflight, (Message, &'static str)> {
    let Some(body) = answer.body.first_chunk::<20>().copied() else {
        return Err((answer, "less than 20 bytes"));
    };
    if answer.fds.len() != 1 {
        return Err((answer, "not one file"));
    }
    let fd = answer.fds.remove(0);
    let u64_at = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8 bytes"));
    let u16_at = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]);
    Ok(Inflight {
        size: u64_at(0),
        offset: u64_at(8),
        queues: u16_at(16),
        queue_size: u16_at(18),
        fd,
    })
}
