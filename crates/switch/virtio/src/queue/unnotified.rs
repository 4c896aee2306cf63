//! Elements that the driver was not notified of yet: the part of notifications that all layouts
//! share.

/// Elements that were published since the last answer to whether the driver wants a notification.
#[derive(Debug, Default)]
pub(super) struct UnnotifiedElements {
    count: u32,
    /// Whether there was an answer yet. Elements that a former process published and did not notify
    /// are not known, so the first answer does not use the event index.
    asked: bool,
}

impl UnnotifiedElements {
    /// Adds published elements.
    #[inline]
    pub(super) fn add(&mut self, elements: u16) {
        self.count = self.count.saturating_add(u32::from(elements));
    }

    /// Returns the number of elements.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns by how many elements the index has moved, for a comparison with an event index;
    /// `None` if that is not known.
    #[inline]
    pub(super) fn moved(&self) -> Option<u32> {
        self.asked.then_some(self.count)
    }

    /// Begins anew after an answer.
    #[inline]
    pub(super) fn answered(&mut self) {
        self.asked |= self.count > 0;
        self.count = 0;
    }
}
