//! The end of a connection without frames.

use crate::machine;
use crate::timeouts::{Millis, Settings};

use super::content::Content;
use super::entry::Entry;
use super::word::Life;

/// Returns whether a connection is over.
#[inline(always)]
pub(crate) fn is_over(entry: &Entry, life: Life, settings: &Settings, now: Millis) -> bool {
    let sides = [&entry.original.side(), &entry.reply.side()];
    let progress = Content::of(life).progress();
    machine::remaining(entry.protocol(), progress, sides, now, settings).is_none()
}
