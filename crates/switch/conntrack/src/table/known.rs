//! The filter that prefilters ask, to leave frames of known connections alone: see
//! [`offload::connections`].
//!
//! An entry is raised there from before it is published until it is free again, so another
//! connection of its tuple that takes its place is raised meanwhile.

use std::os::fd::BorrowedFd;

use mapping::SharedWords;
use offload::connections::SIZE;
use offload::{ConnectionFilter, Conversation};

use crate::tuple::Tuple;

use super::TableError;
use super::entry::Entry;

/// The filter of all prefilters of the host, if there is one.
#[derive(Debug)]
pub(crate) struct KnownConnections(Option<ConnectionFilter<SharedWords<SIZE>>>);

impl KnownConnections {
    /// No filter.
    pub(crate) const NONE: Self = Self(None);

    /// Takes over a filter, whatever it holds; it is empty, and rules nothing out. No other process
    /// writes to it. `seed` is random.
    ///
    /// # Errors
    /// It cannot be mapped, or is none.
    pub(crate) fn begin(file: BorrowedFd<'_>, seed: u64) -> Result<Self, TableError> {
        let memory = SharedWords::map(file, true).map_err(TableError::Filter)?;
        let filter = ConnectionFilter::begin(memory, seed);
        let none = || TableError::Filter(std::io::ErrorKind::InvalidData.into());
        filter.ok_or_else(none).map(|filter| Self(Some(filter)))
    }

    /// Makes a filter, for tests.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn in_file(seed: u64) -> Self {
        use std::os::fd::AsFd;

        let file = sys::file::fixed("filter", SIZE as u64).expect("a file");
        let memory = SharedWords::<SIZE>::map(file.as_fd(), true).expect("its memory");
        offload::connections::create(&memory);
        Self::begin(file.as_fd(), seed).expect("a filter")
    }

    /// Has prefilters use it: all known connections are raised.
    pub(crate) fn publish(&self) {
        if let Some(filter) = &self.0 {
            filter.publish();
        }
    }

    /// Raises a connection, before it is published.
    #[inline(always)]
    pub(crate) fn raise(&self, tuple: &Tuple) {
        if let Some(filter) = &self.0 {
            raise(filter, tuple);
        }
    }

    /// Lowers the connection that an entry had, before the entry is free.
    pub(crate) fn lower(&self, entry: Option<&Entry>) {
        if let (Some(filter), Some(entry)) = (&self.0, entry) {
            filter.lower(&conversation(&entry.tuple()));
        }
    }
}

/// Not inlined: the code of commits stays as small as it is without a filter.
#[inline(never)]
fn raise(filter: &ConnectionFilter<SharedWords<SIZE>>, tuple: &Tuple) {
    filter.raise(&conversation(tuple));
}

/// Returns the conversation of a connection. What else its tuple has, such as the zone, does not
/// count: programs do not know it.
#[inline]
fn conversation(tuple: &Tuple) -> Conversation {
    let [_, src, src_high, dst, dst_high] = *tuple.words();
    let ends = [
        (src, src_high, tuple.src_port()),
        (dst, dst_high, tuple.dst_port()),
    ];
    Conversation::new(tuple.protocol(), ends)
}
