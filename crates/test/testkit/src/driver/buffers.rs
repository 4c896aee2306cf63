//! Buffers with the device, as both layouts have them.

use std::collections::VecDeque;

use super::{QueueOptions, Used, UsedFault};

/// Buffers with the device, by their ids.
#[derive(Debug)]
pub(super) struct Buffers {
    options: QueueOptions,
    pending: Vec<Option<Pending>>,
    outstanding: u16,
    /// Empty without IN_ORDER.
    pub(super) order: InOrder,
}

impl Buffers {
    pub(super) fn new(options: QueueOptions) -> Self {
        Self {
            options,
            pending: vec![None; usize::from(options.size)],
            outstanding: 0,
            order: InOrder::default(),
        }
    }

    pub(super) fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Returns the ids, in order of publication if that is known.
    pub(super) fn ids(&self) -> Vec<u16> {
        if self.options.in_order {
            return self.order.heads.iter().copied().collect();
        }
        (0..self.options.size)
            .filter(|id| self.get(*id).is_some())
            .collect()
    }

    pub(super) fn get(&self, id: u16) -> Option<Pending> {
        self.pending.get(usize::from(id)).copied().flatten()
    }

    pub(super) fn stage(&mut self, id: u16, pending: Pending) {
        self.pending[usize::from(id)] = Some(pending);
        if self.options.in_order {
            self.order.heads.push_back(id);
        }
        self.outstanding += 1;
    }

    /// Takes back a buffer with the length of its used element, if it has one. Returns the number
    /// of its ring descriptors, too.
    pub(super) fn finish(&mut self, id: u16, len: Option<u32>) -> Result<(Used, u16), UsedFault> {
        let pending = self.get(id).ok_or(UsedFault::UnknownId(u32::from(id)))?;
        let used = pending.used(id, len)?;
        self.pending[usize::from(id)] = None;
        self.outstanding -= 1;
        Ok((used, pending.slots))
    }
}

/// A buffer that is with the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) token: u64,
    /// Bytes that the device may write.
    pub(super) writable: u64,
    /// Ring descriptors it takes.
    pub(super) slots: u16,
}

impl Pending {
    /// Checks the length of its used element; without one the buffer was skipped by a batch.
    fn used(self, id: u16, len: Option<u32>) -> Result<Used, UsedFault> {
        let Some(len) = len else {
            return Ok(Used {
                id,
                token: self.token,
                len: self.writable as u32,
                implied: true,
            });
        };
        match self.writable {
            0 if len > 0 => Err(UsedFault::WroteReadOnly(len)),
            writable if u64::from(len) > writable => Err(UsedFault::TooLong { len, writable }),
            _ => Ok(Used {
                id,
                token: self.token,
                len,
                implied: false,
            }),
        }
    }
}

/// The order of heads and the batch being taken apart, for IN_ORDER queues (sections 2.7.9 and
/// 2.8.10): a device may write one used element for a batch, naming its last buffer and standing
/// where the element of its first one belongs.
#[derive(Debug, Default)]
pub(super) struct InOrder {
    /// In the order of their publication.
    pub(super) heads: VecDeque<u16>,
    /// The last buffer of the open batch, and its length.
    pub(super) batch: Option<(u16, u32)>,
}

impl InOrder {
    /// Opens a batch unless one is open; `ahead` is how many elements the device has announced.
    pub(super) fn open(&mut self, id: u16, len: u32, ahead: u16) -> Result<(), UsedFault> {
        let at = self
            .heads
            .iter()
            .position(|h| *h == id)
            .ok_or(UsedFault::UnknownId(u32::from(id)))?;
        let batch = at as u16 + 1;
        if batch > ahead {
            return Err(UsedFault::ShortBatch { batch, ahead });
        }
        self.batch = Some((id, len));
        Ok(())
    }

    /// The next buffer of the open batch and, when it is the named one, its length.
    pub(super) fn step(&mut self) -> Option<(u16, Option<u32>)> {
        let (last, len) = self.batch?;
        let id = self.heads.pop_front()?;
        if id != last {
            return Some((id, None));
        }
        self.batch = None;
        Some((id, Some(len)))
    }
}
