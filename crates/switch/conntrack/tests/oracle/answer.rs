//! An answer to a packet: the verdict, and the connection's entry.

use std::fmt;

/// The answer of a tracker to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// `invalid`, `new`, `original`, `reply`, `related-original`, `related-reply`, `untracked`, or
    /// `lost` of a packet that did not come out.
    pub(crate) verdict: String,
    /// The entry afterwards.
    pub(crate) entry: Option<Entry>,
}

/// A connection in the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Seconds until it expires.
    pub(crate) seconds: u32,
    /// State of TCP, else `-`.
    pub(crate) state: String,
    /// Whether the other side has answered.
    pub(crate) replied: bool,
    /// Whether more than a question and its answer have passed.
    pub(crate) assured: bool,
}

/// Whether both entries are one, but for two seconds: one of them may have expired.
pub(crate) fn agree(ours: Option<&Entry>, kernels: Option<&Entry>) -> bool {
    match (ours, kernels) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            a.seconds.abs_diff(b.seconds) <= 2
                && (&a.state, a.replied, a.assured) == (&b.state, b.replied, b.assured)
        }
        (Some(entry), None) | (None, Some(entry)) => entry.seconds <= 2,
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.seconds, self.state)?;
        if !self.replied {
            write!(f, " [UNREPLIED]")?;
        }
        if self.assured {
            write!(f, " [ASSURED]")?;
        }
        Ok(())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.verdict)?;
        match &self.entry {
            Some(entry) => write!(f, " {entry}"),
            None => write!(f, " -"),
        }
    }
}
