//! The table of translations: any messages of a front end, misses and denials, successors that
//! continue the file, and files with garbage, beside a slow oracle. A look-up finds only what was
//! granted and not revoked, with that access, and a block no longer than that; so does a
//! translation that a reader has kept, as long as the generation is the same. A message that is not
//! valid changes nothing. The table stays in its bounds. No question is lost, each is taken once,
//! and whatever answers it has readers look again.

use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use arbitrary::{Arbitrary, Result, Unstructured};
use memory::iotlb::oracle::{Oracle, same_set};
use memory::iotlb::{
    Access, Counts, Hit, Iotlb, IotlbWriter, MOST_BLOCKS, MOST_MISSES, Miss, Need, SLOTS, Update,
};
use memory::{GuestMemory, Region};
use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const PAGE: u64 = 4096;
/// Bytes of a table's file.
const FILE: u64 = 4096 + 16 * SLOTS as u64;
/// Translations that the reader keeps at most.
const MOST_KEPT: usize = 32;

/// User address, guest-physical address and bytes of each region: two that touch in both spaces,
/// one that follows them in the front end only, and one with huge pages.
const REGIONS: [(u64, u64, u64); 4] = [
    (0x7000_0000_0000, 0, 16 << 20),
    (0x7000_0100_0000, 16 << 20, 2 << 20),
    (0x7000_0120_0000, 32 << 20, 64 << 10),
    (0x7100_0000_0000, 4 << 30, 4 << 30),
];

/// Memory, of which nothing is ever touched.
static MEMORY: LazyLock<GuestMemory> = LazyLock::new(|| {
    let region = |(uva, gpa, size)| {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, size).expect("its size");
        Arc::new(Region::map(file, gpa, size, uva, 0).expect("a region"))
    };
    GuestMemory::new(REGIONS.into_iter().map(region).collect(), None).expect("disjoint")
});

/// Pages that displace each other.
static RIVALS: LazyLock<Vec<u64>> = LazyLock::new(|| same_set().take(6).collect());

enum Step {
    Update(Update, Option<Miss>),
    Invalidate(u64, u64),
    Clear,
    Ask(Miss),
    /// The writer takes all questions.
    Take,
    Deny(Miss),
    /// A reader takes a denial.
    TakeDenial(Miss),
    EndDenials,
    /// A reader looks up, and keeps what it finds.
    Keep(u64, Access),
    /// A successor continues the file.
    Resume,
    /// Another process writes a word there before.
    Spoil(u32, u64),
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.arbitrary::<u8>()? % 24 {
            0..=8 => update(u)?,
            9..=11 => Self::Invalidate(address(u)?, size(u)?),
            12 => Self::Clear,
            13..=15 => Self::Ask(miss(u)?),
            16 => Self::Take,
            17 => Self::Deny(miss(u)?),
            18 => Self::TakeDenial(miss(u)?),
            19 => Self::EndDenials,
            20 | 21 => Self::Keep(address(u)?, access(u)?),
            22 => Self::Resume,
            _ => Self::Spoil(u.arbitrary()?, u.arbitrary()?),
        })
    }
}

/// An I/O virtual page: of a few large blocks, of one set, at the start of a large or huge block,
/// or any.
fn page(u: &mut Unstructured<'_>) -> Result<u64> {
    let (kind, n) = (u.arbitrary::<u8>()?, u64::from(u.arbitrary::<u16>()?));
    Ok(match kind % 8 {
        0..=2 => n % 2048,
        3 => n % 8 * 512,
        4 => RIVALS[n as usize % RIVALS.len()],
        5 => (n % 8) << 18,
        6 => (1 << 52) - 1 - n % 1024,
        _ => u.arbitrary::<u64>()? >> 12,
    })
}

fn address(u: &mut Unstructured<'_>) -> Result<u64> {
    let inside = u64::from(u.arbitrary::<u8>()?);
    Ok((page(u)? << 12) + inside * inside % PAGE)
}

/// A number of bytes: of a few pages, of large or huge blocks, or any.
fn size(u: &mut Unstructured<'_>) -> Result<u64> {
    let (kind, n) = (u.arbitrary::<u8>()?, u64::from(u.arbitrary::<u16>()?));
    Ok(match kind % 16 {
        0..=5 => (n % 4 + 1) * PAGE,
        6..=8 => (n % 1100) * PAGE,
        9..=11 => (n % 8 + 1) << 21,
        12 | 13 => (n % 4 + 1) << 30,
        14 => n,
        _ => u.arbitrary()?,
    })
}

fn access(u: &mut Unstructured<'_>) -> Result<Access> {
    let bits = u64::from(u.arbitrary::<u8>()? % 3) + 1;
    Ok(Access::from_bits(bits).expect("an access"))
}

fn miss(u: &mut Unstructured<'_>) -> Result<Miss> {
    Ok(Miss::new(page(u)? << 12, access(u)?))
}

/// An UPDATE, most of them valid, whose memory is mostly at one of a few distances: blocks overlap
/// and agree then.
fn update(u: &mut Unstructured<'_>) -> Result<Step> {
    let (page, size, kind) = (page(u)?, size(u)?, u.arbitrary::<u8>()?);
    let (start, _, len) = REGIONS[usize::from(kind & 3) % 4];
    let distance = match kind >> 2 & 7 {
        0..=3 => 0,
        4 => 1,
        5 => 512,
        6 => 1 << 18,
        _ => u64::from(u.arbitrary::<u16>()?),
    };
    let user_addr = start + (page.wrapping_add(distance) << 12) % len;
    let (iova, permission) = (page << 12, u.arbitrary::<u8>()?);
    let mut update = Update {
        iova,
        size,
        user_addr,
        permission: 3,
    };
    match permission >> 4 {
        0..=6 => update.permission = permission % 3 + 1,
        7 => update.permission = permission % 8,
        8 => update.user_addr = u.arbitrary()?,
        9 => update.iova += u64::from(permission % 3),
        _ => {}
    }
    let asked = match kind >> 5 {
        0..=2 => None,
        3..=6 => Some(Miss::new(
            iova.wrapping_add(size / 8 * u64::from(kind >> 5)),
            access(u)?,
        )),
        _ => Some(miss(u)?),
    };
    Ok(Step::Update(update, asked))
}

/// A translation that a reader has kept.
struct Kept {
    generation: u64,
    iova: u64,
    access: Access,
    hit: Hit,
}

struct Rig {
    writer: IotlbWriter,
    file: OwnedFd,
    oracle: Oracle,
    /// Another process wrote into the file, and the successor uses it all the same: it may hold all
    /// until it is emptied.
    spoilt: bool,
    counts: Counts,
    /// Questions that the writer has not taken.
    asked: Vec<Miss>,
    /// Denials that may be there; the table forgets the oldest where it has no room.
    denied: Vec<Miss>,
    kept: Vec<Kept>,
    checks: u64,
}

/// Steps.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let mut rig = Rig::new();
    while !u.is_empty() {
        let Ok(step) = u.arbitrary() else { break };
        rig.step(&step);
        rig.check();
    }
    rig.look_everywhere();
    rig.take();
}

impl Rig {
    fn new() -> Self {
        let (writer, file) = IotlbWriter::create().expect("a table");
        Self {
            writer,
            file,
            oracle: Oracle::default(),
            spoilt: false,
            counts: Counts::default(),
            asked: Vec::new(),
            denied: Vec::new(),
            kept: Vec::new(),
            checks: 0,
        }
    }

    fn table(&self) -> &Iotlb {
        self.writer.table()
    }

    fn step(&mut self, step: &Step) {
        let (answers, generation) = (self.table().answers(), self.table().generation());
        let revokes = matches!(step, Step::Invalidate(_, size) if *size > 0);
        match *step {
            Step::Update(update, asked) => self.update(&update, asked),
            Step::Invalidate(iova, size) => self.invalidate(iova, size),
            Step::Clear => {
                self.writer.clear();
                self.emptied();
            }
            Step::Ask(miss) => self.ask(miss),
            Step::Take => self.take(),
            Step::Deny(miss) => self.deny(miss),
            Step::TakeDenial(miss) => self.take_denial(miss),
            Step::EndDenials => {
                self.writer.end_denials();
                self.denied.clear();
            }
            Step::Keep(iova, access) => self.keep(iova, access),
            Step::Resume => return self.resume(),
            Step::Spoil(at, word) => {
                let at = u64::from(at) * 8 % FILE;
                let written = rustix::io::pwrite(&self.file, &word.to_ne_bytes(), at);
                assert_eq!(written, Ok(8));
                return self.resume_spoilt();
            }
        }
        if revokes || matches!(step, Step::Clear) {
            assert_ne!(
                self.table().generation(),
                generation,
                "readers use the old ones"
            );
        }
        if revokes || matches!(step, Step::Clear | Step::Deny(_) | Step::EndDenials) {
            assert_ne!(self.table().answers(), answers, "readers do not look again");
        }
    }

    fn update(&mut self, update: &Update, asked: Option<Miss>) {
        let (answers, generation) = (self.table().answers(), self.table().generation());
        let result = self.writer.update(&MEMORY, update, asked.as_slice());
        let Some(gpa) = place(update) else {
            assert!(result.is_err(), "{update:x?}");
            self.counts.refusals += 1;
            let now = (self.table().answers(), self.table().generation());
            assert_eq!(now, (answers, generation), "a message that was refused");
            return;
        };
        let entered = result.unwrap_or_else(|reason| panic!("{update:x?}: {reason}"));
        assert!(entered <= MOST_BLOCKS);
        self.counts.updates += 1;
        self.oracle.update(update, gpa, asked);
        if entered > 0 {
            assert_ne!(self.table().answers(), answers, "readers do not look again");
            self.forget_denials(update.iova, update.size);
            Oracle::check_answer(self.writer.table(), update, gpa, asked);
        }
    }

    fn invalidate(&mut self, iova: u64, size: u64) {
        let result = self.writer.invalidate(iova, size);
        let Ok(again) = result else {
            assert_eq!(size, 0);
            self.counts.refusals += 1;
            return;
        };
        self.counts.invalidations += 1;
        self.oracle.invalidate(iova, size);
        self.forget_denials(iova, size);
        let before = self.asked.len();
        self.asked.retain(|miss| !overlaps(*miss, iova, size));
        assert!(again || self.asked.len() == before, "who asked looks again");
        let (first, last) = (iova / PAGE, iova.saturating_add(size - 1) / PAGE);
        let step = ((last - first) / 64).max(1);
        for page in (first..=last).step_by(step as usize).chain([last]) {
            for access in [Access::READ, Access::WRITE] {
                assert_eq!(self.table().look_up(page << 12, access), None, "{page:#x}");
            }
        }
    }

    fn forget_denials(&mut self, iova: u64, size: u64) {
        self.denied.retain(|miss| !overlaps(*miss, iova, size));
    }

    fn ask(&mut self, miss: Miss) {
        let noted = self.table().ask(miss, Need::Now);
        let is_there = self.asked.contains(&miss);
        assert_eq!(noted, is_there || self.asked.len() < MOST_MISSES);
        if noted && !is_there {
            self.asked.push(miss);
        }
    }

    fn take(&mut self) {
        let asked = self.table().asked().expect("a descriptor");
        let ready = sys::wait::ready(asked, PollFlags::IN, Some(Instant::now()));
        let is_rung = ready.expect("an event") == PollFlags::IN;
        assert!(
            is_rung || self.asked.is_empty(),
            "a question without a sound"
        );
        sys::event::clear(asked);
        let mut taken = Vec::new();
        self.table().misses().take(|miss| taken.push(miss));
        assert_eq!(taken.len(), self.asked.len());
        assert!(taken.iter().all(|miss| self.asked.contains(miss)));
        self.asked.clear();
    }

    fn deny(&mut self, miss: Miss) {
        self.writer.deny(miss, Need::Now);
        assert!(self.table().is_denied(miss));
        if !self.denied.contains(&miss) {
            self.denied.push(miss);
        }
    }

    fn take_denial(&mut self, miss: Miss) {
        let was_there = self.table().is_denied(miss);
        let taken = self.table().take_denial(miss);
        assert_eq!(taken, was_there);
        assert!(
            !taken || self.denied.contains(&miss),
            "nothing denies {miss:?}"
        );
        assert!(!self.table().is_denied(miss));
        self.denied.retain(|denied| *denied != miss);
    }

    fn keep(&mut self, iova: u64, access: Access) {
        let generation = self.table().generation();
        if let Some(hit) = self.table().look_up(iova, access)
            && self.kept.len() < MOST_KEPT
        {
            self.kept.push(Kept {
                generation,
                iova,
                access,
                hit,
            });
        }
    }

    /// The file as its writer left it.
    fn resume(&mut self) {
        let successor = IotlbWriter::resume(&self.file);
        let generation = self.table().generation();
        self.replace(successor.expect("the table that was left"));
        assert_eq!(self.table().generation(), generation);
        if self.spoilt {
            self.counts = self.table().counts();
        }
    }

    fn resume_spoilt(&mut self) {
        if let Ok(reader) = Iotlb::attach(&self.file) {
            for page in (0..2048).step_by(97).chain(RIVALS.iter().copied()) {
                let _ = reader.look_up(page << 12, Access::READ);
            }
        }
        match IotlbWriter::resume(&self.file) {
            Ok(successor) => {
                self.replace(successor);
                self.spoilt = true;
            }
            Err(reason) => {
                assert!(!reason.to_string().is_empty());
                let (writer, file) = IotlbWriter::create().expect("a table");
                self.file = file;
                self.replace(writer);
                self.emptied();
            }
        }
        self.counts = self.table().counts();
    }

    /// Readers with what they have kept, questions and denials end with the process.
    fn replace(&mut self, writer: IotlbWriter) {
        self.writer = writer;
        self.asked.clear();
        self.denied.clear();
        self.kept.clear();
    }

    fn emptied(&mut self) {
        self.oracle.clear();
        self.asked.clear();
        self.denied.clear();
        self.spoilt = false;
        assert_eq!(self.table().counts().entries, 0);
    }

    fn check(&mut self) {
        let seen = self.table().counts();
        assert!(seen.entries <= SLOTS as u64);
        self.counts.entries = seen.entries;
        self.counts.evictions = seen.evictions;
        assert_eq!(seen, self.counts);
        if self.spoilt {
            return;
        }
        // A few each time: the oracle is slow.
        self.checks += 1;
        let some = [
            self.checks * 211 % 2048,
            RIVALS[self.checks as usize % RIVALS.len()],
        ];
        self.oracle.check(self.writer.table(), some);
        let now = self.table().generation();
        self.kept.retain(|kept| kept.generation == now);
        for kept in &self.kept {
            let page = kept.iova / PAGE;
            let granted = self.oracle.granted(page);
            let (frame, access) = granted.unwrap_or_else(|| panic!("kept: {page:#x}"));
            assert_eq!(kept.hit.gpa, frame * PAGE + kept.iova % PAGE);
            assert!(access.includes(kept.access));
        }
    }

    fn look_everywhere(&self) {
        if self.spoilt {
            return;
        }
        let small = (0..3200).step_by(3);
        let large = (0..40).map(|n| n * 512 + n);
        let huge = (0..12).map(|n| (n << 18) + n * 7);
        let last = (0..1024).step_by(5).map(|n| (1 << 52) - 1 - n);
        let all = small.chain(large).chain(huge).chain(last);
        self.oracle.check(self.writer.table(), all);
    }
}

fn overlaps(miss: Miss, iova: u64, size: u64) -> bool {
    let (first, last) = (iova / PAGE, iova.saturating_add(size - 1) / PAGE);
    (first..=last).contains(&(miss.iova() / PAGE))
}

/// Returns the guest-physical address of a valid UPDATE.
fn place(update: &Update) -> Option<u64> {
    let Update {
        iova,
        size,
        user_addr,
        permission,
    } = *update;
    let is_whole = [iova, size, user_addr].iter().all(|n| n % PAGE == 0);
    if size == 0 || !is_whole || !matches!(permission, 1..=3) {
        return None;
    }
    iova.checked_add(size - 1)?;
    let (mut at, mut left, mut place) = (user_addr, size, None);
    while left > 0 {
        let inside = |(start, ..): &&(u64, u64, u64)| at >= *start;
        let (start, gpa, len) = REGIONS.iter().rev().find(inside)?;
        let offset = at - start;
        let part = len.checked_sub(offset).filter(|part| *part > 0)?.min(left);
        let first = *place.get_or_insert(gpa + offset);
        if first + (size - left) != gpa + offset {
            return None;
        }
        left -= part;
        at = at.checked_add(part)?;
    }
    place
}
