//! Ports behind an IOMMU: when the back end learns of mappings, and the few lines of a VMM that
//! tell it.
//!
//! Every buffer lies on pages of its own, and the IOVAs of a port are its guest-physical addresses
//! moved by a constant: so a mapping costs the client next to nothing beside its messages. Nothing
//! is watched; `testkit::iommu` is for tests. Rings are mapped for good in every mode.

use std::ops::Range;
use std::sync::Weak;
use std::time::Instant;

use super::LeanError;
use super::frames::Frames;
use super::probe::{Probe, Probed};
use testkit::frontend::{
    BACKEND_IOTLB_MSG, FLAG_NEED_REPLY, FLAG_REPLY, FrontEnd, FrontError, IotlbKind, IotlbMessage,
    Line, VERSION, request,
};
use testkit::guest_ram::GuestRam;
use testkit::iommu::{HUGE, PAGE};

/// Most pages of 4 KiB that one UPDATE grants.
const MOST: u64 = 512;
/// Rounds between two looks for questions, where there should be none, and looks without one after
/// which that is so again.
const LOOK: u32 = 64;
/// Which queue a buffer is of.
const SIDES: [Access; 2] = [Access::Write, Access::Read];

/// When mappings of buffers are made and revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grants {
    /// All memory in use is mapped before the first frame, in blocks of 2 MiB or of 4 KiB.
    Persistent {
        /// Of 2 MiB.
        huge: bool,
    },
    /// A buffer is mapped at its first use, and stays so.
    Reuse {
        /// After so many uses of buffers, all of them are unmapped as they come back, each once.
        drained: Option<u64>,
    },
    /// A buffer is mapped for each use, the mappings of all that are offered together are sent
    /// together, and so many are revoked together, neighbours by one message.
    Batched(usize),
    /// A buffer is mapped for each use and revoked when it came back, by a message each that is
    /// answered before the next.
    Strict,
    /// As `Strict`, but the back end has to ask; the client looks for questions in every round, and
    /// answers each with a page.
    OnDemand,
}

/// Access of the back end; the values are those of the messages. What may be written may be read,
/// too: DPDK 22.11 asks for both, and QEMU grants both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read = 1,
    Write = 3,
}

/// State of one buffer's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapping {
    None,
    /// Since the pool was drained so many times.
    Made(u64),
    /// It is to be revoked, with others.
    Limbo,
}

/// Mappings of the buffers of one queue.
#[derive(Debug)]
struct Side {
    access: Access,
    /// Of guest-physical addresses.
    memory: Range<u64>,
    /// Bytes from one buffer to the next.
    stride: u64,
    mappings: Vec<Mapping>,
    limbo: Vec<u16>,
    uses: u64,
}

impl Side {
    fn new(frames: &Frames, count: u16, access: Access) -> Self {
        let buffers = frames.buffers();
        let stride = u64::from(buffers.stride);
        Self {
            access,
            memory: buffers.gpa..buffers.gpa + stride * u64::from(count),
            stride,
            mappings: vec![Mapping::None; count.into()],
            limbo: Vec::new(),
            uses: 0,
        }
    }

    /// Pages of buffers `ids`.
    fn pages(&self, ids: Range<u16>) -> Range<u64> {
        let at = |id: u16| self.memory.start + u64::from(id) * self.stride;
        at(ids.start)..at(ids.end)
    }

    /// The buffer at a guest-physical address, if it is mapped.
    fn is_mapped(&self, gpa: u64) -> bool {
        let id = gpa.wrapping_sub(self.memory.start) / self.stride;
        let found = usize::try_from(id)
            .ok()
            .and_then(|id| self.mappings.get(id));
        found.is_some_and(|mapping| *mapping != Mapping::None)
    }
}

/// The IOMMU of one port, and its VMM.
#[derive(Debug)]
pub(super) struct Granted {
    mode: Grants,
    line: Weak<Line>,
    /// Of the back end's questions; never waited for.
    channel: FrontEnd,
    ram: GuestRam,
    /// Receive and transmit buffers.
    sides: [Side; 2],
    /// Everything that is mapped for good.
    lasting: Range<u64>,
    /// How often the pool was drained.
    drained: u64,
    rounds: u32,
    /// Looks for questions since one was found.
    looks: u32,
    counts: Counts,
    /// When the first question since the last look at this was read.
    asked: Option<Instant>,
    probe: Option<Probe>,
}

/// Messages since the port came up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// UPDATE and INVALIDATE.
    pub(super) mappings: u64,
    /// MISS.
    pub(super) misses: u64,
}

impl Grants {
    /// IOVA of guest-physical address 0. Blocks of 2 MiB need addresses that are aligned in both
    /// spaces.
    pub(super) fn shift(self) -> u64 {
        match self {
            Self::Persistent { huge: true } => 1 << 40,
            _ => (1 << 40) + PAGE,
        }
    }

    /// Bytes of what is mapped at once.
    fn block(self) -> u64 {
        match self {
            Self::Persistent { huge: true } => HUGE,
            _ => PAGE,
        }
    }
}

impl Granted {
    /// Opens the channel on a session that has the memory. Receive buffers lie before transmit
    /// buffers.
    pub(super) fn new(
        mode: Grants,
        front: &mut FrontEnd,
        ram: &GuestRam,
        frames: [(&Frames, u16); 2],
    ) -> Result<Self, LeanError> {
        front.open_backend_channel()?;
        let channel = front.take_backend_channel().ok_or(FrontError::Closed)?;
        let channel = FrontEnd::over(channel, std::time::Duration::ZERO)?;
        channel.socket().set_nonblocking(true)?;
        let start = ram.regions()[0].spec().gpa;
        // All that is in use, and no page more: rings lie behind all buffers.
        let end = ram.alloc(0, 1).next_multiple_of(mode.block());
        let sides = [0, 1].map(|n| Side::new(frames[n].0, frames[n].1, SIDES[n]));
        let lasting = match mode {
            Grants::Persistent { huge: true } => start..end,
            Grants::Persistent { huge: false } => sides[0].memory.start..end,
            _ => sides[1].memory.end..end,
        };
        Ok(Self {
            mode,
            line: front.line(),
            channel,
            ram: ram.clone(),
            sides,
            lasting,
            drained: 0,
            rounds: 0,
            looks: LOOK,
            counts: Counts::default(),
            asked: None,
            probe: None,
        })
    }

    /// Sends what is mapped for good. It is to be sent before the queues are set up, so that they
    /// start at once, and again after it, because DPDK 22.11 keeps translations for those queues
    /// only that it knows of.
    pub(super) fn tell_lasting(&mut self) -> Result<(), LeanError> {
        let block = match self.mode {
            Grants::Persistent { .. } => self.mode.block(),
            _ => MOST * PAGE,
        };
        let end = self.lasting.end;
        let starts = self.lasting.clone().step_by(block as usize);
        let update = |at: u64| self.update(at..end.min(at + block), 3);
        self.tell(&starts.map(update).collect::<Vec<_>>())
    }

    /// Makes mappings for these buffers of a queue, which are about to be offered.
    pub(super) fn give(
        &mut self,
        access: Access,
        ids: impl Iterator<Item = u16>,
    ) -> Result<(), LeanError> {
        if matches!(self.mode, Grants::Persistent { .. }) {
            return Ok(());
        }
        let number = usize::from(access == Access::Read);
        let mut messages = Vec::new();
        for id in ids {
            if self.sides[number].mappings[usize::from(id)] == Mapping::Limbo {
                self.revoke_limbo(number)?;
            }
            if self.sides[number].mappings[usize::from(id)] != Mapping::None {
                continue;
            }
            let side = &mut self.sides[number];
            side.mappings[usize::from(id)] = Mapping::Made(self.drained);
            let pages = side.pages(id..id + 1);
            messages.push(self.update(pages, access as u8));
        }
        match self.mode {
            Grants::OnDemand => Ok(()),
            Grants::Strict => messages.chunks(1).try_for_each(|one| self.tell(one)),
            _ => self.tell(&messages),
        }
    }

    /// Takes back a buffer of a queue that was used.
    pub(super) fn take(&mut self, access: Access, id: u16) -> Result<(), LeanError> {
        let number = usize::from(access == Access::Read);
        let side = &mut self.sides[number];
        let revoked = match self.mode {
            Grants::Persistent { .. } | Grants::Reuse { drained: None } => return Ok(()),
            Grants::Reuse {
                drained: Some(uses),
            } => {
                side.uses += 1;
                self.drained += u64::from(side.uses.is_multiple_of(uses));
                side.mappings[usize::from(id)] != Mapping::Made(self.drained)
            }
            Grants::Batched(most) => {
                side.mappings[usize::from(id)] = Mapping::Limbo;
                side.limbo.push(id);
                if side.limbo.len() >= most {
                    self.revoke_limbo(number)?;
                }
                return Ok(());
            }
            Grants::Strict | Grants::OnDemand => true,
        };
        if revoked {
            side.mappings[usize::from(id)] = Mapping::None;
            let pages = side.pages(id..id + 1);
            self.tell(&[invalidate(self.mode, pages)])?;
        }
        Ok(())
    }

    /// Revokes what waits for it.
    fn revoke_limbo(&mut self, number: usize) -> Result<(), LeanError> {
        let side = &mut self.sides[number];
        side.limbo.sort_unstable();
        let mut messages = Vec::new();
        for run in side.limbo.chunk_by(|a, b| a + 1 == *b) {
            for id in run {
                side.mappings[usize::from(*id)] = Mapping::None;
            }
            let pages = side.pages(run[0]..run[run.len() - 1] + 1);
            messages.push(invalidate(self.mode, pages));
        }
        side.limbo.clear();
        self.tell(&messages)
    }

    /// Returns whether buffers that come back are to be taken back one by one.
    pub(super) fn revokes(&self) -> bool {
        !matches!(
            self.mode,
            Grants::Persistent { .. } | Grants::Reuse { drained: None }
        )
    }

    /// In a new round: answers questions, when it is time to look for some.
    pub(super) fn look(&mut self) -> Result<(), LeanError> {
        self.rounds = self.rounds.wrapping_add(1);
        if let Some(probe) = &mut self.probe {
            probe.step()?;
        }
        let expected = self.mode == Grants::OnDemand || self.looks < LOOK;
        if expected || self.rounds.is_multiple_of(LOOK) {
            self.looks = self.looks.saturating_add(1);
            self.answer()?;
        }
        Ok(())
    }

    /// Answers the questions that are there.
    fn answer(&mut self) -> Result<(), LeanError> {
        loop {
            let message = match self.channel.receive() {
                Ok(message) => message,
                Err(FrontError::Timeout(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let asked = IotlbMessage::from_bytes(&message.body)
                .filter(|asked| asked.kind == IotlbKind::Miss);
            if asked.is_some() {
                self.counts.misses += 1;
                self.looks = 0;
                self.asked.get_or_insert_with(Instant::now);
            }
            let granted = asked.and_then(|asked| self.found(asked.iova, asked.perm));
            if let Some(update) = granted {
                self.tell(&[update])?;
            }
            if message.flags & FLAG_NEED_REPLY != 0 {
                let (flags, code) = (VERSION | FLAG_REPLY, u64::from(granted.is_none()));
                let body = code.to_le_bytes();
                self.channel
                    .send_raw(BACKEND_IOTLB_MSG, flags, 8, &body, &[])?;
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// When the first question since the last call was read.
    pub(super) fn take_asked(&mut self) -> Option<Instant> {
        self.asked.take()
    }

    /// Begins with messages that nothing depends on, or ends with them: the times of their answers.
    pub(super) fn probe(&mut self, on: bool) -> Result<Option<Probed>, LeanError> {
        let ended = match self.probe.take() {
            Some(mut probe) => {
                probe.settle()?;
                Some(probe.into_times())
            }
            None => None,
        };
        if on {
            // A page behind all that is mapped.
            let message = invalidate(self.mode, self.lasting.end..self.lasting.end + PAGE);
            self.probe = Some(Probe::new(self.line.clone(), message));
        }
        Ok(ended)
    }

    /// The UPDATE for the page at an IOVA, if it is mapped.
    fn found(&self, iova: u64, perm: u8) -> Option<IotlbMessage> {
        let gpa = iova.wrapping_sub(self.mode.shift());
        let page = gpa - gpa % PAGE;
        let mapped = self.lasting.contains(&gpa)
            || self
                .sides
                .iter()
                .any(|side| side.access as u8 & perm == perm && side.is_mapped(gpa));
        mapped.then(|| self.update(page..page + PAGE, perm))
    }

    fn update(&self, pages: Range<u64>, perm: u8) -> IotlbMessage {
        IotlbMessage {
            iova: pages.start + self.mode.shift(),
            size: pages.end - pages.start,
            user: self.ram.user_address(pages.start),
            perm,
            kind: IotlbKind::Update,
        }
    }

    fn tell(&mut self, messages: &[IotlbMessage]) -> Result<(), LeanError> {
        let line = self.line.upgrade().ok_or(FrontError::Closed)?;
        // Answers come in the order of the messages.
        if let Some(probe) = &mut self.probe {
            probe.settle()?;
        }
        self.counts.mappings += messages.len() as u64;
        let bodies: Vec<_> = messages.iter().map(|message| message.to_bytes()).collect();
        Ok(line.tell_all(request::IOTLB_MSG, &bodies, true)?)
    }
}

fn invalidate(mode: Grants, pages: Range<u64>) -> IotlbMessage {
    IotlbMessage::invalidate(pages.start + mode.shift(), pages.end - pages.start)
}
