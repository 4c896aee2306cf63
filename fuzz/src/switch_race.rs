//! A switch between guests that behave and one, or a process, whose second CPU rewrites its rings,
//! descriptors, tables, headers and payload while they are read: a stopped queue is the worst that
//! comes of it, what arrives elsewhere is a frame under a correct header, and traffic of the others
//! is as they sent it.
//!
//! A guest with an IOMMU also revokes pages of rings, tables and buffers under way. When the users
//! of its queues were waited for, as before the answer to an INVALIDATE, an access to such a page
//! ends the process (see `guarded`).

#[path = "../../crates/switch/datapath/tests/common/mod.rs"]
mod common;
#[path = "../../crates/switch/datapath/tests/common/slot_clients.rs"]
mod slot_clients;
mod translations;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};

use arbitrary::{Arbitrary, Result, Unstructured};
use datapath::forward::switch::Switch;
use datapath::ports::attached::AttachedPort;
use datapath::ports::guest::GuestPort;
use ipc::records::Answer;
use port::PortId;
use port::counters::Counters;
use testkit::driver::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, RawDesc, Shape};
use testkit::features::{
    ALL_OFFLOADS, EVENT_IDX, IN_ORDER, INDIRECT_DESC, MRG_RXBUF, RING_PACKED, VERSION_1,
};
use testkit::guest_ram::GuestRam;
use testkit::net::{NetHeader, NetOptions, NetPair, RxBuffers};
use testkit::packets::{Flow, udp};
use testkit::slots::{SlotFormat, SlotNic, SlotOptions};
use wire::flow::{FlowKey, FlowMask};

use common::{NoUpcalls, guest};
use slot_clients::slot_client;
use translations::Translations;

const EVIL: PortId = PortId(0);
const GOOD: [PortId; 2] = [PortId(1), PortId(2)];
const SIZE: u16 = 16;
const MEMORY: u64 = 1 << 20;
/// The hostile driver's own buffer and table, bytes.
const DATA: u64 = 4096;
const TABLE: u64 = 16 * 32;
/// Guests that it is, one after the other, in one run.
const LIVES: usize = 4;

/// Writes of the second CPU, again and again, in turn with the original value. Bit 3 of the area,
/// and an IOMMU: it revokes the page instead; and bit 4: any page.
struct Write {
    area: u8,
    at: u16,
    value: u16,
}

impl<'a> Arbitrary<'a> for Write {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (area, at, value) = u.arbitrary()?;
        Ok(Self { area, at, value })
    }
}

/// A piece of the data: where, how long, and whether the device may write it.
type Piece = (u16, u16, u8);

enum Step {
    /// Sends a chain of pieces of the data.
    Chain(Vec<Piece>),
    /// Write in a table.
    Table(Vec<Piece>),
    /// Sends a frame with this header as a driver does.
    Frame([u8; 12], u16),
    /// Gets a frame of this length.
    Get(u16),
    /// Sets its queues up anew.
    Again,
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let pieces = |u: &mut Unstructured<'a>| {
            let count = u.arbitrary::<u8>()? % 4 + 1;
            (0..count)
                .map(|_| u.arbitrary())
                .collect::<Result<Vec<Piece>>>()
        };
        Ok(match u.arbitrary::<u8>()? % 16 {
            0..=4 => Self::Chain(pieces(u)?),
            5..=8 => Self::Table(pieces(u)?),
            9..=11 => Self::Frame(u.arbitrary()?, u.arbitrary::<u16>()? % 3000),
            12..=14 => Self::Get(u.arbitrary::<u16>()? % 3000),
            _ => Self::Again,
        })
    }
}

/// Kind of the hostile side.
#[derive(Clone, Copy)]
enum Kind {
    Guest,
    /// A guest with an IOMMU.
    Translated,
    /// A process with slot queues.
    Client(SlotFormat),
}

/// The hostile side's queues: a guest's, or those of a process.
enum Nic {
    Guest(Box<NetPair>),
    Client(SlotNic),
}

/// The hostile guest in one of its lives.
struct Evil {
    ram: GuestRam,
    nic: Nic,
    data: u64,
    table: u64,
    translations: Option<Translations>,
}

impl Evil {
    fn new(features: u64, kind: Kind) -> (Self, GuestPort) {
        let mut translations = None;
        let (ram, nic, port) = match kind {
            Kind::Translated => {
                let (ram, mut nic, port, own) = translations::guest(options(features), MEMORY);
                nic.auto_refill = false;
                translations = Some(own);
                (ram, Nic::Guest(Box::new(nic)), port)
            }
            Kind::Guest => {
                let (ram, mut nic, port) = guest(options(features), MEMORY);
                nic.auto_refill = false;
                (ram, Nic::Guest(Box::new(nic)), port)
            }
            Kind::Client(format) => {
                let (ram, nic, port) = slot_client(SlotOptions::new(format, SIZE), features);
                (ram, Nic::Client(nic), port)
            }
        };
        let (data, table) = (ram.alloc(DATA, 64), ram.alloc(TABLE, 16));
        let evil = Self {
            ram,
            nic,
            data,
            table,
            translations,
        };
        (evil, port)
    }

    /// Returns the guest address of the second CPU's write.
    fn address(&self, write: &Write) -> u64 {
        let (rx, tx) = match &self.nic {
            Nic::Guest(nic) => (nic.rx.addrs(), nic.tx.addrs()),
            Nic::Client(nic) => (nic.rx.addrs(), nic.tx.addrs()),
        };
        let at = u64::from(write.at) & !1;
        match write.area % 8 {
            0 => tx.desc + at % (16 * u64::from(SIZE)),
            1 => tx.driver + at % 40,
            2 => tx.device + at % 140,
            3 => rx.desc + at % (16 * u64::from(SIZE)),
            4 => rx.driver + at % 40,
            5 => rx.device + at % 140,
            6 => self.table + at % TABLE,
            _ => self.data + at % DATA,
        }
    }

    /// Returns the place of the second CPU's write.
    fn target(&self, write: &Write) -> &'static AtomicU16 {
        let memory = self.ram.memory();
        let place = memory.translate(self.address(write), 2);
        let place = place.expect("its own memory");
        // SAFETY: two aligned bytes of memory that outlives the writing thread: `lives` joins it
        // before the guest goes.
        unsafe { AtomicU16::from_ptr(place.ptr.cast()) }
    }

    fn descs(&self, pieces: &[Piece]) -> Vec<RawDesc> {
        let last = pieces.len() - 1;
        let desc = |(i, (at, len, bits)): (usize, &Piece)| {
            let mut flags = if i < last { DESC_NEXT } else { 0 };
            flags |= if bits & 15 == 15 { DESC_WRITE } else { 0 };
            RawDesc {
                gpa: self.data + u64::from(*at) % DATA,
                len: u32::from(*len) % 2048,
                flags,
            }
        };
        pieces.iter().enumerate().map(desc).collect()
    }

    fn put(&mut self, descs: &[RawDesc]) {
        match &mut self.nic {
            Nic::Guest(nic) => {
                // Its used ring may be nonsense.
                let _ = nic.tx.poll();
                if nic.tx.add_raw(descs, 0).is_some() {
                    nic.tx.publish();
                }
            }
            Nic::Client(nic) => {
                for desc in descs {
                    let offset = (desc.gpa - self.data) as u32 % (u32::from(SIZE) + 8);
                    let len = desc.len & 0xffff;
                    nic.tx.give_raw(offset, len, desc.flags & DESC_NEXT != 0);
                }
                nic.tx.publish();
            }
        }
    }

    /// Sends a frame as a driver does.
    fn send(&mut self, header: [u8; 12], len: u16) {
        let frame = udp(&Flow::v4(1, 2), &vec![7; len.into()]);
        let header = NetHeader::from_bytes(header);
        match &mut self.nic {
            Nic::Guest(nic) => {
                let _ = nic.send(&frame, &header);
            }
            Nic::Client(nic) => {
                nic.stage(&frame, &header);
                nic.tx.publish();
            }
        }
    }

    /// Writes a table; split descriptors have flags before the link, packed ones the id before the
    /// flags.
    fn put_table(&mut self, pieces: &[Piece], packed: bool) {
        let descs = self.descs(pieces);
        for (i, desc) in descs.iter().enumerate() {
            let next = (i as u16 + 1).to_le_bytes();
            let flags = desc.flags.to_le_bytes();
            let (first, second) = if packed { (next, flags) } else { (flags, next) };
            let len = desc.len.to_le_bytes();
            let bytes = [&desc.gpa.to_le_bytes()[..], &len, &first, &second].concat();
            self.ram.write(self.table + 16 * i as u64, &bytes);
        }
        self.put(&[RawDesc {
            gpa: self.table,
            len: 16 * descs.len() as u32,
            flags: DESC_INDIRECT,
        }]);
    }
}

fn options(features: u64) -> NetOptions {
    NetOptions {
        shape: Shape::Direct,
        rx_buffers: RxBuffers::Of(2048),
        ..NetOptions::new(features, SIZE)
    }
}

struct World {
    switch: Switch<AttachedPort>,
    good: [NetPair; 2],
    features: u64,
    kind: Kind,
    /// Frames that the first good guest has got.
    arrived: u64,
}

thread_local! {
    /// Without ports, from one run to the next: its tables take longer to make than a run.
    static SWITCH: Cell<Option<Switch<AttachedPort>>> = const { Cell::new(None) };
}

/// One byte of options, then what is written, then steps.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok((options, count)) = u.arbitrary::<(u8, u8)>() else {
        return;
    };
    let writes: Result<Vec<Write>> = (0..count % 32).map(|_| u.arbitrary()).collect();
    let Ok(writes) = writes else { return };
    let mut world = World::new(options);
    for _ in 0..LIVES {
        world.live(&writes, &mut u);
        if u.is_empty() {
            break;
        }
    }
    let (faults, _) = world.switch.take_faults();
    assert!(faults.iter().all(|(id, ..)| *id == EVIL), "{faults:?}");
    GOOD.into_iter().for_each(|id| world.unplug(id));
    SWITCH.set(Some(world.switch));
}

impl World {
    fn new(options: u8) -> Self {
        // A legacy driver, with either header, has neither packed rings nor IN_ORDER.
        let mut features = match (options >> 5 & 3, options & (1 | 1 << 3)) {
            (1, 0) => 0,
            (2, 0) => MRG_RXBUF,
            _ => VERSION_1 | MRG_RXBUF,
        };
        for (bit, feature) in [
            RING_PACKED,
            INDIRECT_DESC,
            EVENT_IDX,
            IN_ORDER,
            ALL_OFFLOADS,
        ]
        .into_iter()
        .enumerate()
        {
            features |= if options >> bit & 1 == 1 { feature } else { 0 };
        }
        let header = [0, 10, 12, 12][usize::from(options & 3)];
        let kind = match options >> 5 {
            3 => Kind::Translated,
            4 | 5 => Kind::Client(SlotFormat::Netmap { header }),
            6 | 7 => Kind::Client(SlotFormat::Memif),
            _ => Kind::Guest,
        };
        let mut switch = SWITCH
            .take()
            .unwrap_or_else(|| Switch::new(Counters::heap(), 5));
        let good = GOOD.map(|id| {
            let (_, nic, port) = guest(self::options(VERSION_1 | MRG_RXBUF), MEMORY);
            switch.add_port(id, port.into());
            nic
        });
        Self {
            switch,
            good,
            features,
            kind,
            arrived: 0,
        }
    }

    /// One life of the hostile guest: until it sets its queues up anew, or one of them is stopped.
    fn live(&mut self, writes: &[Write], u: &mut Unstructured<'_>) {
        let (mut evil, port) = Evil::new(self.features, self.kind);
        self.switch.add_port(EVIL, port.into());
        let mut translations = evil.translations.take();
        if let Some(own) = &mut translations {
            own.revoke_in_turn(writes.iter().filter_map(|write| match write.area >> 3 & 3 {
                1 => Some(evil.address(write)),
                3 => Some(evil.data + (u64::from(write.value) << 12)),
                _ => None,
            }));
        }
        let writes = writes.iter();
        let writes = writes.filter(|write| translations.is_none() || write.area & 8 == 0);
        let targets: Vec<_> = writes.map(|w| (evil.target(w), w.value)).collect();
        let stop = AtomicBool::new(targets.is_empty() && translations.is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| rewrite(&targets, translations.as_mut(), &stop));
            while !u.is_empty() {
                let Ok(step) = u.arbitrary() else { break };
                if !self.step(&mut evil, step) {
                    break;
                }
            }
            stop.store(true, Relaxed);
        });
        // The guest's memory goes after its port.
        self.unplug(EVIL);
    }

    fn unplug(&mut self, id: PortId) {
        self.switch.remove_port(id, 0);
        while self.switch.has_work() {
            self.switch.continue_work(0);
        }
    }

    /// Executes a step; returns whether the run continues.
    fn step(&mut self, evil: &mut Evil, step: Step) -> bool {
        match step {
            Step::Chain(pieces) => {
                let descs = evil.descs(&pieces);
                evil.put(&descs);
            }
            Step::Table(pieces) => evil.put_table(&pieces, self.features & RING_PACKED != 0),
            Step::Frame(header, len) => evil.send(header, len),
            Step::Get(len) => self.pass(EVIL, usize::from(len)),
            Step::Again => return false,
        }
        self.decide(EVIL, GOOD[0]);
        // As after an answer of the front end.
        if let Some(port) = self.switch.guest_mut(EVIL) {
            let _ = port.retry(0);
        }
        // Twice: what is there changes meanwhile.
        for _ in 0..2 {
            self.switch.serve(EVIL, 0, 0, &mut NoUpcalls);
        }
        let good = &mut self.good[0];
        while good.receive().expect("a correct device").is_some() {
            self.arrived += 1;
        }
        good.offer();
        self.pass(GOOD[1], 100);
        let got = self.good[1].receive().expect("a correct device");
        assert_eq!(got.expect("a frame").frame, honest(100));
        self.good[1].offer();
        self.switch.take_faults() == (Vec::new(), true)
    }

    /// The first good guest sends a frame to another.
    fn pass(&mut self, to: PortId, len: usize) {
        self.decide(GOOD[0], to);
        let good = &mut self.good[0];
        let sent = good.send(&honest(len), &NetHeader::default());
        assert!(sent.expect("a correct device"), "room");
        assert!(self.switch.serve(GOOD[0], 0, 0, &mut NoUpcalls));
        assert_eq!(self.good[0].reclaim().expect("a correct device"), 1);
    }

    fn decide(&mut self, from: PortId, to: PortId) {
        let key = FlowKey::default().with_in_port(from.0);
        let mask = FlowMask::NONE.with_in_port();
        self.switch.answer(Answer::unicast(&key, &mask, to), 0);
        assert!(self.switch.continue_work(0));
    }
}

fn honest(len: usize) -> Vec<u8> {
    udp(&Flow::v4(2, 3), &vec![9; len])
}

/// The second CPU: each place in turn, with what was there and what it is to be; and the front end.
fn rewrite(
    targets: &[(&'static AtomicU16, u16)],
    mut translations: Option<&mut Translations>,
    stop: &AtomicBool,
) {
    let before: Vec<u16> = targets.iter().map(|(at, _)| at.load(Relaxed)).collect();
    while !stop.load(Relaxed) {
        for ((at, value), before) in targets.iter().zip(&before) {
            at.store(*value, Relaxed);
            std::hint::spin_loop();
            at.store(*before, Relaxed);
        }
        if let Some(translations) = &mut translations {
            translations.turn();
        }
    }
}
