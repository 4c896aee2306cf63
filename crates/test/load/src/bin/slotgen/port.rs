//! A port or pipe as a program of netmap's opens it: open, ioctl, mmap, and its rings.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{addr_of, addr_of_mut};

use crate::abi::{
    Header, Interface, NIOCCTRL, NIOCRXSYNC, NIOCTXSYNC, NR_ACCEPT_VNET_HDR, NR_EXCLUSIVE,
    NR_TX_RINGS_ONLY, REG_ALL_NIC, REG_ONE_NIC, REQ_PORT_HDR_SET, REQ_REGISTER, Register, Ring,
    SLOTS, Slot,
};

/// A mapped memory, by its number: programs map each once.
static MAPPED: std::sync::Mutex<Vec<(u16, usize)>> = std::sync::Mutex::new(Vec::new());

/// Parameters of a port.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wishes {
    pub(crate) slots: (u32, u32),
    pub(crate) rings: (u16, u16),
    pub(crate) extra: u32,
    pub(crate) header: u32,
}

/// A registered port.
pub(crate) struct Port {
    pub(crate) fd: c_int,
    pub(crate) register: Register,
    base: usize,
    pub(crate) tx: Vec<RingRef>,
    pub(crate) rx: Vec<RingRef>,
}

/// The address of a ring.
#[derive(Clone, Copy)]
pub(crate) struct RingRef(*mut Ring);

fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn request(fd: c_int, reqtype: u16, name: &str, body: *mut c_void) -> io::Result<()> {
    let mut header = Header {
        version: 14,
        reqtype,
        reserved: 0,
        name: [0; 64],
        options: 0,
        body: body as u64,
    };
    let bytes = name.as_bytes();
    let len = bytes.len().min(63);
    header.name[..len].copy_from_slice(&bytes[..len]);
    // SAFETY: the header and its body live until the call returns.
    check(unsafe { libc::ioctl(fd, NIOCCTRL, &raw mut header) })
}

/// Splits `netmap:NAME-1/xT@2` into the name that the ioctl gets, mode, ring, flags and memory.
fn parse(text: &str) -> (String, u32, u16, u64, u16) {
    let name = text.strip_prefix("netmap:").unwrap_or(text);
    let (name, memory) = name.split_once('@').unwrap_or((name, ""));
    let (name, letters) = name.split_once('/').unwrap_or((name, ""));
    let memory = memory.parse().unwrap_or(0);
    let mut flags = 0;
    for letter in letters.chars() {
        flags |= match letter {
            'x' => NR_EXCLUSIVE,
            'T' => NR_TX_RINGS_ONLY,
            _ => 0,
        };
    }
    match name.rsplit_once('-') {
        Some((name, ring)) if ring.parse::<u16>().is_ok() => {
            let ring = ring.parse().unwrap_or(0);
            (name.to_owned(), REG_ONE_NIC, ring, flags, memory)
        }
        _ => (name.to_owned(), REG_ALL_NIC, 0, flags, memory),
    }
}

impl Port {
    /// Opens and registers, with the calls that programs make.
    pub(crate) fn open(text: &str, wishes: Wishes) -> io::Result<Self> {
        let (name, mode, ringid, flags, mem_id) = parse(text);
        // SAFETY: the path is a string.
        let fd = unsafe { libc::open(c"/dev/netmap".as_ptr(), libc::O_RDWR) };
        check(fd)?;
        if wishes.header > 0 {
            let mut body = [wishes.header, 0];
            request(fd, REQ_PORT_HDR_SET, &name, body.as_mut_ptr().cast())?;
        }
        let mut register = Register {
            tx_slots: wishes.slots.0,
            rx_slots: wishes.slots.1,
            tx_rings: wishes.rings.0,
            rx_rings: wishes.rings.1,
            mem_id,
            ringid,
            mode,
            extra_bufs: wishes.extra,
            flags: flags | NR_ACCEPT_VNET_HDR,
            ..Register::default()
        };
        request(fd, REQ_REGISTER, &name, (&raw mut register).cast())?;
        let base = map(fd, &register)?;
        let mut port = Self {
            fd,
            register,
            base,
            tx: Vec::new(),
            rx: Vec::new(),
        };
        port.find_rings();
        Ok(port)
    }

    fn interface(&self) -> *mut Interface {
        (self.base + self.register.offset as usize) as *mut Interface
    }

    fn find_rings(&mut self) {
        let interface = self.interface();
        // SAFETY: the interface lies in the mapping, as the registration said, and its offsets
        // follow it, as many as its fields say.
        unsafe {
            let count = |own: *const u32, host: *const u32| (own.read() + host.read()) as usize;
            let tx = count(
                addr_of!((*interface).tx_rings),
                addr_of!((*interface).host_tx_rings),
            );
            let rx = count(
                addr_of!((*interface).rx_rings),
                addr_of!((*interface).host_rx_rings),
            );
            let offsets = interface.add(1).cast::<i64>();
            let ring = |index: usize| {
                let offset = offsets.add(index).read();
                let at = (interface as usize).wrapping_add_signed(offset as isize);
                (offset != 0).then_some(RingRef(at as *mut Ring))
            };
            self.tx = (0..tx).filter_map(ring).collect();
            self.rx = (tx..tx + rx).filter_map(ring).collect();
        }
    }

    pub(crate) fn sync(&self, sends: bool) -> io::Result<()> {
        let request = if sends { NIOCTXSYNC } else { NIOCRXSYNC };
        // SAFETY: these requests have no argument.
        check(unsafe { libc::ioctl(self.fd, request, std::ptr::null_mut::<c_void>()) })
    }

    /// Numbers of the extra buffers, which leave the list.
    pub(crate) fn take_extra(&self) -> Vec<u32> {
        let mut found = Vec::new();
        // SAFETY: the interface and all buffers lie in the mapping.
        unsafe {
            let head = addr_of_mut!((*self.interface()).bufs_head);
            let mut index = head.read_volatile();
            while index != 0 && found.len() < self.register.extra_bufs as usize {
                found.push(index);
                index = self.buffer(index).cast::<u32>().read_volatile();
            }
            head.write_volatile(0);
        }
        found
    }

    /// Puts buffers back into the list.
    pub(crate) fn give_extra(&self, buffers: &[u32]) {
        // SAFETY: as in `take_extra`.
        unsafe {
            let head = addr_of_mut!((*self.interface()).bufs_head);
            for index in buffers {
                self.buffer(*index)
                    .cast::<u32>()
                    .write_volatile(head.read_volatile());
                head.write_volatile(*index);
            }
        }
    }

    fn buffer(&self, index: u32) -> *mut u8 {
        let ring = self.tx.first().or(self.rx.first());
        ring.map_or(std::ptr::null_mut(), |ring| ring.buffer(index))
    }
}

fn map(fd: c_int, register: &Register) -> io::Result<usize> {
    let mut mapped = MAPPED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = mapped.iter().find(|(number, _)| *number == register.mem_id);
    if let Some((_, base)) = known {
        return Ok(*base);
    }
    let len = register.memsize as usize;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the system's choice.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    mapped.push((register.mem_id, base as usize));
    Ok(base as usize)
}

impl RingRef {
    pub(crate) fn slots(self) -> u32 {
        // SAFETY: the ring lies in the mapping.
        unsafe { addr_of!((*self.0).num_slots).read_volatile() }
    }

    pub(crate) fn buffer_size(self) -> u32 {
        // SAFETY: as in `slots`.
        unsafe { addr_of!((*self.0).nr_buf_size).read_volatile() }
    }

    pub(crate) fn head(self) -> u32 {
        // SAFETY: as in `slots`.
        unsafe { addr_of!((*self.0).head).read_volatile() }
    }

    pub(crate) fn tail(self) -> u32 {
        // SAFETY: as in `slots`.
        unsafe { addr_of!((*self.0).tail).read_volatile() }
    }

    /// Slots of the program.
    pub(crate) fn space(self) -> u32 {
        let (head, tail) = (self.head(), self.tail());
        if tail >= head {
            tail - head
        } else {
            tail + self.slots() - head
        }
    }

    pub(crate) fn next(self, at: u32) -> u32 {
        if at + 1 == self.slots() { 0 } else { at + 1 }
    }

    /// Moves `head` and `cur`.
    pub(crate) fn advance(self, to: u32) {
        self.set_cur(to);
        // SAFETY: as in `slots`.
        unsafe { addr_of_mut!((*self.0).head).write_volatile(to) };
    }

    pub(crate) fn set_cur(self, to: u32) {
        // SAFETY: as in `slots`.
        unsafe { addr_of_mut!((*self.0).cur).write_volatile(to) };
    }

    pub(crate) fn slot(self, at: u32) -> *mut Slot {
        let slots = (self.0 as usize + SLOTS) as *mut Slot;
        // SAFETY: callers name slots of the ring, which lie in the mapping.
        unsafe { slots.add(at as usize) }
    }

    pub(crate) fn get(self, at: u32) -> Slot {
        // SAFETY: as in `slot`.
        unsafe { self.slot(at).read() }
    }

    pub(crate) fn set(self, at: u32, slot: Slot) {
        // SAFETY: as in `slot`.
        unsafe { self.slot(at).write(slot) };
    }

    pub(crate) fn buffer(self, index: u32) -> *mut u8 {
        // SAFETY: as in `slots`.
        let offset = unsafe { addr_of!((*self.0).buf_ofs).read() };
        let base = (self.0 as usize).wrapping_add_signed(offset as isize);
        (base + index as usize * self.buffer_size() as usize) as *mut u8
    }

    /// The bytes of a slot's buffer.
    ///
    /// # Safety
    /// The slot is the program's, and no other borrow of its buffer exists.
    pub(crate) unsafe fn bytes<'a>(self, slot: &Slot) -> &'a mut [u8] {
        let len = self.buffer_size() as usize;
        // SAFETY: the buffer lies in the mapping, which is never undone, and is the program's.
        unsafe { std::slice::from_raw_parts_mut(self.buffer(slot.buf_idx), len) }
    }
}
