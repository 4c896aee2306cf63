//! A guest of real KVM behind a vhost-user back end: one receive and one transmit queue, and vCPUs
//! that KVM puts to sleep.
//!
//! ```text
//!             frames             irqfd, line 5     +-------+  port 0x50, ioeventfd
//!  back end ---------> RX queue, call ------------>| vCPU  |----------------------> answered()
//!             TX queue, kick                       |   0   |
//!           <--------------------------------------|       |<---------------------- order()
//!             port 0x51, ioeventfd                 +-------+  irqfd, line 6
//! ```
//! The guest has these addresses, 1 MiB in all:
//!
//! ```text
//! 0        vectors      0x1000   code      0x4000   stacks, one page each
//! 0x10000  data segment: rings and counters, then buffers
//! ```

use std::io;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvm_bindings::{
    KVM_CAP_HALT_POLL, KVM_MP_STATE_RUNNABLE, kvm_enable_cap, kvm_mp_state, kvm_regs,
};
use kvm_ioctls::{IoEventAddress, NoDatamatch};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use vmm_sys_util::eventfd::EventFd;

use super::code::{self, ANSWER, Data, FRAMES_LINE, KICK, ORDER_LINE, Ring};
use super::vcpu::VcpuThread;
use super::{KvmError, Machine};
use crate::driver::{DriverQueue, Layout, Piece, QueueOptions, Shape};
use crate::features::{EVENT_IDX, PROTOCOL_FEATURES, VERSION_1, protocol};
use crate::frontend::{Event, FrontEnd};
use crate::guest_ram::{EDGE, GuestRam};
use crate::packets;
use crate::wait::{LIMIT, within};

const MEMORY: u64 = 1 << 20;
const CODE_AT: u16 = 0x1000;
/// The end of the first vCPU's stack, and the bytes of each.
const STACKS: u64 = 0x4000;
const STACK: u64 = 0x1000;
/// The data segment.
const DATA_AT: u64 = EDGE;

/// Entries of each queue: the guest's code knows them.
const ENTRIES: u16 = 256;
const RX_BUFFER: u32 = 2048;
/// Bytes of the header before each frame, all of them 0 (virtio 1.3 section 5.1.6).
const HEADER: usize = 12;

/// The guest's counters; they are written by the guest, and have the offsets of [`Data`].
const INTERRUPTS: u64 = 0;
const KICKS: u64 = 4;
const ORDERS: u64 = 8;
const READY: u64 = 12;
/// Two words for each vCPU.
const COUNTS: u64 = 16;

/// So long the guest needs to set itself up, at most.
const SETS_UP: Duration = Duration::from_secs(10);

/// Work of the first vCPU between interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// None: it halts. An order sends a frame.
    Halt,
    /// It counts all the time. An order sends a frame.
    Work,
    /// It halts until there is an order, counts so many times, and halts again.
    Orders {
        /// Counts for each order, more than 0.
        iterations: u32,
    },
}

/// Work of the other vCPUs, which are never interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// None: they halt.
    Halt,
    /// They count all the time.
    Work,
}

/// Configuration of a guest.
#[derive(Clone, Debug)]
pub struct KvmGuestConfig {
    /// vCPUs, 1 at least.
    pub vcpus: usize,
    /// Work of the first vCPU.
    pub task: Task,
    /// Work of the other vCPUs.
    pub others: Others,
    /// Each interrupt that brings frames is answered ([`KvmGuest::answered`]).
    pub answers: bool,
    /// At each interrupt that brings frames a frame is sent.
    pub replies: bool,
    /// VIRTIO_F_EVENT_IDX, which the back end must then offer.
    pub event_idx: bool,
    /// So long KVM polls before it puts a halted vCPU to sleep, at most, in nanoseconds; none
    /// leaves the host's setting.
    pub halt_poll_ns: Option<u32>,
    /// Names of the vCPUs' threads, at most 15 bytes; `{}` becomes the number of the vCPU.
    pub thread_name: String,
    /// The frame that the guest sends, from the Ethernet header on.
    pub frame: Vec<u8>,
}

impl Default for KvmGuestConfig {
    /// One vCPU that halts and answers, a thread's name as of QEMU's, and a frame from test guest 1
    /// to test guest 2.
    fn default() -> Self {
        Self {
            vcpus: 1,
            task: Task::Halt,
            others: Others::Halt,
            answers: true,
            replies: false,
            event_idx: true,
            halt_poll_ns: None,
            thread_name: "CPU {}/KVM".to_owned(),
            frame: packets::udp(&packets::Flow::v4(1, 2), &[0; 18]),
        }
    }
}

impl KvmGuestConfig {
    fn features(&self) -> u64 {
        VERSION_1 | PROTOCOL_FEATURES | if self.event_idx { EVENT_IDX } else { 0 }
    }

    fn queue(&self, ram: &GuestRam) -> DriverQueue {
        let options = QueueOptions {
            event_idx: self.event_idx,
            // The guest takes descriptors in order; the device need not know.
            in_order: true,
            ..QueueOptions::new(Layout::Split, ENTRIES)
        };
        DriverQueue::new(ram, options)
    }
}

/// The guest's devices, from this side.
#[derive(Debug)]
pub(super) struct Events {
    /// Interrupts for frames, and orders.
    pub(super) frames: Event,
    orders: Event,
    answers: Event,
    pub(super) tx_kick: Event,
    /// Not used: the one is not signalled, the other not read.
    rx_kick: Event,
    tx_call: Event,
}

/// A running guest; its threads are this process's, and end with it.
#[derive(Debug)]
pub struct KvmGuest {
    vcpus: Vec<VcpuThread>,
    front: Option<FrontEnd>,
    machine: Arc<Machine>,
    config: KvmGuestConfig,
    pub(super) rx: DriverQueue,
    pub(super) tx: DriverQueue,
    counters: u64,
    /// Receive buffers, in the order of their descriptors.
    buffers: u64,
    events: Events,
}

impl KvmGuest {
    /// Starts a guest, waits until it has set itself up, and connects it to a listening vhost-user
    /// back end. Returns when the back end has handled everything.
    ///
    /// # Errors
    /// [`KvmError::Unavailable`] where KVM does not work; other ones of the session.
    ///
    /// # Panics
    /// On a configuration without vCPUs or iterations.
    pub fn start(socket: &Path, config: KvmGuestConfig) -> Result<Self, KvmError> {
        let mut guest = Self::unconnected(config)?;
        guest.connect(socket)?;
        Ok(guest)
    }

    /// As [`KvmGuest::start`], without a back end.
    ///
    /// # Errors
    /// [`KvmError::Unavailable`].
    ///
    /// # Panics
    /// As [`KvmGuest::start`].
    pub fn unconnected(config: KvmGuestConfig) -> Result<Self, KvmError> {
        assert!(config.vcpus > 0, "a guest has vCPUs");
        let idle = config.task == (Task::Orders { iterations: 0 });
        assert!(!idle, "an order has iterations");
        let machine = Machine::new(MEMORY)?;
        let ram = &machine.ram;
        let (mut rx, mut tx) = (config.queue(ram), config.queue(ram));
        let counters = ram.alloc(COUNTS + 8 * config.vcpus as u64, 8);
        let buffers = fill(ram, &mut rx, &mut tx, &config.frame);
        let events = Events::new(&machine, config.halt_poll_ns)?;
        let mut guest = Self {
            vcpus: Vec::new(),
            front: None,
            machine,
            config,
            rx,
            tx,
            counters,
            buffers,
            events,
        };
        guest.run_vcpus()?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Loads the code, and runs the vCPUs.
    fn run_vcpus(&mut self) -> Result<(), KvmError> {
        let data = Data {
            rx: ring(&self.rx),
            tx: ring(&self.tx),
            interrupts: offset(self.counters + INTERRUPTS),
            kicks: offset(self.counters + KICKS),
            orders: offset(self.counters + ORDERS),
            ready: offset(self.counters + READY),
        };
        let ram = &self.machine.ram;
        let program = code::assemble(CODE_AT, &self.config, &data);
        ram.write(CODE_AT.into(), &program.bytes);
        for (at, vector) in (0..).step_by(4).zip(program.vectors) {
            ram.store_u32(at, vector.into());
        }
        for number in 0..self.config.vcpus {
            let count = self.counters + COUNTS + 8 * number as u64;
            ram.store_u32(count, 1);
            let entry = if number == 0 {
                program.main
            } else {
                program.other
            };
            let registers = kvm_regs {
                rip: entry.into(),
                rsp: STACKS + STACK * (1 + number as u64),
                rbx: offset(count).into(),
                ..Default::default()
            };
            let vcpu = self.machine.vcpu(number, &registers, DATA_AT)?;
            // Else all but the first wait for an interrupt of its.
            vcpu.set_mp_state(kvm_mp_state {
                mp_state: KVM_MP_STATE_RUNNABLE,
            })?;
            let name = self.thread_name(number);
            let thread = VcpuThread::spawn(&name, &self.machine, vcpu)?;
            self.vcpus.push(thread);
        }
        Ok(())
    }

    fn thread_name(&self, vcpu: usize) -> String {
        self.config.thread_name.replace("{}", &vcpu.to_string())
    }

    fn wait_ready(&self) -> Result<(), KvmError> {
        let mut ready = [0];
        let set_up = within(SETS_UP, || {
            self.machine.ram.read(self.counters + READY, &mut ready);
            (ready[0] != 0 || self.vcpus[0].has_failed()).then_some(())
        });
        match set_up {
            Some(()) if ready[0] != 0 => Ok(()),
            _ => Err(io::Error::other("it does not run code of real mode").into()),
        }
    }

    /// Negotiates with a back end, and starts the queues.
    fn connect(&mut self, socket: &Path) -> Result<(), KvmError> {
        let mut front = FrontEnd::connect(socket, LIMIT)?;
        let features = self.config.features();
        let agreed = front.negotiate(features, protocol::REPLY_ACK)?;
        if agreed != features {
            return Err(KvmError::Missing(features & !agreed));
        }
        let (ram, events) = (&self.machine.ram, &self.events);
        front.set_mem_table(ram)?;
        let rx = (Some(events.rx_kick.as_fd()), Some(events.frames.as_fd()));
        let tx = (Some(events.tx_kick.as_fd()), Some(events.tx_call.as_fd()));
        front.start_vring(0, (ram, &self.rx), 0, rx)?;
        front.start_vring(1, (ram, &self.tx), 0, tx)?;
        front.set_vring_enable(0, true)?;
        front.set_vring_enable(1, true)?;
        // Messages are handled in order.
        front.get_features()?;
        self.front = Some(front);
        Ok(())
    }

    /// Signalled by the guest at each interrupt that brings frames, if it answers.
    #[must_use]
    pub fn answered(&self) -> &Event {
        &self.events.answers
    }

    /// Gives the guest an order. One that comes before the guest was interrupted for the last one
    /// is lost; a back end must have taken the frame of 256 orders ago.
    pub fn order(&self) {
        self.events.orders.signal();
    }

    /// Interrupts the guest; without a back end there is a received frame, too, else maybe none.
    pub fn interrupt(&self) {
        if self.front.is_none() {
            self.rx.poke_used_idx(self.received().wrapping_add(1));
        }
        self.events.frames.signal();
    }

    /// Counts of the first vCPU so far.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.count(0)
    }

    /// Counts of all other vCPUs so far.
    #[must_use]
    pub fn others_work(&self) -> u64 {
        (1..self.vcpus.len()).map(|vcpu| self.count(vcpu)).sum()
    }

    fn count(&self, vcpu: usize) -> u64 {
        let ram = &self.machine.ram;
        let low_at = self.counters + COUNTS + 8 * vcpu as u64;
        loop {
            let (high, low) = (ram.load_u32(low_at + 4), ram.load_u32(low_at));
            // The lower word began with 1, and is 0 only while the higher one changes.
            if low != 0 && high == ram.load_u32(low_at + 4) {
                return u64::from(high) * u64::from(u32::MAX) + u64::from(low) - 1;
            }
        }
    }

    /// Interrupts of the receive queue so far, modulo 2^32, those without frames included.
    #[must_use]
    pub fn interrupts(&self) -> u32 {
        self.machine.ram.load_u32(self.counters + INTERRUPTS)
    }

    /// Kicks of the transmit queue so far, modulo 2^32.
    #[must_use]
    pub fn kicks(&self) -> u32 {
        self.machine.ram.load_u32(self.counters + KICKS)
    }

    /// Frames that the back end has given to the guest so far, modulo 2^16: the used index.
    #[must_use]
    pub fn received(&self) -> u16 {
        self.rx.peek_used_idx()
    }

    /// Frames that the guest has taken so far, modulo 2^16: it has given their buffers back.
    #[must_use]
    pub fn handled(&self) -> u16 {
        self.rx.peek_avail_idx().wrapping_sub(ENTRIES)
    }

    /// Reads the beginning of frame `number`, counted as [`KvmGuest::received`] does, from its
    /// receive buffer, which is used again 256 frames later.
    pub fn read_frame(&self, number: u16, bytes: &mut [u8]) {
        let at = self.buffers + u64::from(number % ENTRIES) * u64::from(RX_BUFFER);
        self.machine.ram.read(at + HEADER as u64, bytes);
    }

    /// Frames that the guest has sent so far, modulo 2^16: the available index.
    #[must_use]
    pub fn sent(&self) -> u16 {
        self.tx.peek_avail_idx()
    }

    /// The threads of the vCPUs, in the order of the vCPUs.
    #[must_use]
    pub fn vcpu_threads(&self) -> Vec<u32> {
        self.vcpus.iter().map(|vcpu| vcpu.id).collect()
    }

    /// Lets a vCPU run on one core only.
    ///
    /// # Errors
    /// When the core is not this process's.
    ///
    /// # Panics
    /// When there is no such vCPU.
    pub fn set_affinity(&self, vcpu: usize, core: usize) -> io::Result<()> {
        let mut cores = CpuSet::new();
        cores.set(core);
        let thread = Pid::from_raw(self.vcpus[vcpu].id.cast_signed());
        Ok(sched_setaffinity(thread, &cores)?)
    }

    /// Ends the thread of a vCPU, and runs the vCPU on a new one.
    ///
    /// # Errors
    /// When the vCPU has failed, or there is no new thread.
    ///
    /// # Panics
    /// As [`KvmGuest::set_affinity`].
    pub fn replace_vcpu(&mut self, vcpu: usize) -> io::Result<()> {
        let name = self.thread_name(vcpu);
        let fd = self.vcpus[vcpu].end().ok_or(io::ErrorKind::BrokenPipe)?;
        self.vcpus[vcpu] = VcpuThread::spawn(&name, &self.machine, fd)?;
        Ok(())
    }
}

/// Parts for the tests of this module.
#[cfg(test)]
impl KvmGuest {
    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    pub(super) fn ram(&self) -> &GuestRam {
        &self.machine.ram
    }

    /// Sets the lower word of the first vCPU's counts.
    pub(super) fn set_work(&self, low: u32) {
        self.ram().store_u32(self.counters + COUNTS, low);
    }
}

impl Events {
    /// Gives the VM its interrupt controller, its lines and its ports.
    fn new(machine: &Machine, halt_poll_ns: Option<u32>) -> Result<Self, KvmError> {
        let vm = &machine.vm;
        vm.create_irq_chip()?;
        if let Some(ns) = halt_poll_ns {
            vm.enable_cap(&kvm_enable_cap {
                cap: KVM_CAP_HALT_POLL,
                args: [ns.into(), 0, 0, 0],
                ..Default::default()
            })?;
        }
        let line = |line: u8| -> Result<Event, KvmError> {
            let event = Event::new()?;
            vm.register_irqfd(&duplicate(&event)?, line.into())?;
            Ok(event)
        };
        let port = |port: u8| -> Result<Event, KvmError> {
            let event = Event::new()?;
            let address = IoEventAddress::Pio(port.into());
            vm.register_ioevent(&duplicate(&event)?, &address, NoDatamatch)?;
            Ok(event)
        };
        Ok(Self {
            frames: line(FRAMES_LINE)?,
            orders: line(ORDER_LINE)?,
            answers: port(ANSWER)?,
            tx_kick: port(KICK)?,
            rx_kick: Event::new()?,
            tx_call: Event::new()?,
        })
    }
}

/// The same event for the KVM library.
fn duplicate(event: &Event) -> io::Result<EventFd> {
    let fd = event.as_fd().try_clone_to_owned()?;
    // SAFETY: the descriptor is an eventfd, and has no other owner.
    Ok(unsafe { EventFd::from_raw_fd(fd.into_raw_fd()) })
}

/// Makes all receive buffers available, and prepares the transmit buffers, which are one. Returns
/// the address of the receive buffers.
fn fill(ram: &GuestRam, rx: &mut DriverQueue, tx: &mut DriverQueue, frame: &[u8]) -> u64 {
    let packet = [&[0; HEADER], frame].concat();
    let sent = Piece::new(ram.alloc(packet.len() as u64, 8), packet.len() as u32);
    ram.write(sent.gpa, &packet);
    let buffers = ram.alloc(u64::from(ENTRIES) * u64::from(RX_BUFFER), 8);
    for token in 0..ENTRIES.into() {
        let received = Piece::new(buffers + token * u64::from(RX_BUFFER), RX_BUFFER);
        rx.add(&[], &[received], Shape::Direct, token);
        tx.add(&[sent], &[], Shape::Direct, token);
    }
    rx.publish();
    let _ = tx.set_notifications(false);
    buffers
}

/// The fields of a queue (virtio 1.3 sections 2.7.6 and 2.7.8).
fn ring(queue: &DriverQueue) -> Ring {
    let (addrs, entries) = (queue.addrs(), u64::from(ENTRIES));
    Ring {
        avail_idx: offset(addrs.driver + 2),
        used_event: offset(addrs.driver + 4 + 2 * entries),
        used_flags: offset(addrs.device),
        used_idx: offset(addrs.device + 2),
        avail_event: offset(addrs.device + 4 + 8 * entries),
    }
}

/// The offset of a guest address in the data segment.
fn offset(gpa: u64) -> u16 {
    u16::try_from(gpa - DATA_AT).expect("an address in the data segment")
}
