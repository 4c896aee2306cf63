//! UPDATE and INVALIDATE on the front end's socket.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Weak;

use super::{Granted, Iommu, PAGE, State};
use crate::frontend::{FrontError, IotlbKind, IotlbMessage, Line, request};

/// The connection; without one, nothing is said.
#[derive(Debug, Default)]
pub(super) struct Session {
    line: Weak<Line>,
    acknowledged: bool,
    /// The channel, to end the thread that serves it.
    channel: Option<UnixStream>,
}

impl Session {
    pub(super) fn new(line: Weak<Line>, acknowledged: bool, channel: UnixStream) -> Self {
        Self {
            line,
            acknowledged,
            channel: Some(channel),
        }
    }

    fn tell(&self, messages: &[IotlbMessage]) -> Result<(), FrontError> {
        let Some(line) = self.line.upgrade() else {
            return Ok(());
        };
        let bodies: Vec<_> = messages.iter().map(|message| message.to_bytes()).collect();
        match line.tell_all(request::IOTLB_MSG, &bodies, self.acknowledged) {
            // A session that ended takes its translations with it.
            Err(FrontError::Closed) => Ok(()),
            said => said,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            // It may be closed already.
            let _ = channel.shutdown(Shutdown::Both);
        }
    }
}

impl Iommu {
    /// The UPDATE for a page.
    fn update(&self, iova: u64, granted: Granted) -> IotlbMessage {
        IotlbMessage {
            iova,
            size: PAGE,
            user: self.ram.user_address(granted.gpa),
            perm: self.config.answers.perm(granted.access),
            kind: IotlbKind::Update,
        }
    }
}

impl State {
    /// Sends messages; a refusal is a fault.
    pub(super) fn say(&mut self, messages: &[IotlbMessage]) {
        for message in messages {
            match message.kind {
                IotlbKind::Update => self.counts.updates += 1,
                _ => self.counts.invalidations += 1,
            }
        }
        if let Err(error) = self.session.tell(messages) {
            self.faults.push(format!(
                "{error}, of {} from {:?}",
                messages.len(),
                messages.first()
            ));
        }
    }

    /// Tells what these pages lead to, neighbours together where they are contiguous in memory.
    pub(super) fn update(&mut self, iommu: &Iommu, iovas: &[u64]) {
        let mut messages: Vec<IotlbMessage> = Vec::new();
        for iova in iovas {
            let Some(granted) = self.table.get(iova) else {
                continue;
            };
            let next = iommu.update(*iova, *granted);
            match messages.last_mut() {
                Some(run) if continues(run, &next) => run.size += PAGE,
                _ => messages.push(next),
            }
        }
        self.say(&messages);
    }

    /// The run of pages around this one that one UPDATE can tell: contiguous, with one access.
    pub(super) fn run(&self, iommu: &Iommu, iova: u64) -> Option<IotlbMessage> {
        let granted = *self.table.get(&iova)?;
        let mut run = iommu.update(iova, granted);
        while let Some(more) = self.table.get(&(run.iova + run.size))
            && continues(&run, &iommu.update(run.iova + run.size, *more))
        {
            run.size += PAGE;
        }
        while let Some(before) = run.iova.checked_sub(PAGE)
            && let Some(less) = self.table.get(&before)
            && let mut longer = iommu.update(before, *less)
            && continues(&longer, &run)
        {
            longer.size += run.size;
            run = longer;
        }
        Some(run)
    }

    /// Whether INVALIDATE is answered, so that pages may be watched.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.session.acknowledged
    }
}

fn continues(run: &IotlbMessage, next: &IotlbMessage) -> bool {
    run.iova + run.size == next.iova && run.user + run.size == next.user && run.perm == next.perm
}
