//! What is written into each frame before it is sent.

use std::sync::Arc;

use super::LeanPort;
use super::frames::{Frames, Head};
use super::ring::Ring;
use super::segments::Template;

/// See the module. Of several, frames have one after the other.
#[derive(Debug)]
pub(super) enum Patch {
    /// Nothing.
    Nothing,
    /// One of a number of flows.
    Flows { of: u32, next: u32 },
    /// A head.
    Heads { all: Arc<[Head]>, next: usize },
    /// The ports of one of the connections, in frames that are of this kind already.
    Connections {
        template: Template,
        of: u32,
        next: u32,
    },
}

/// The number after `next`, below `of`.
#[inline]
fn after(next: u32, of: u32) -> u32 {
    if next + 1 < of { next + 1 } else { 0 }
}

impl Patch {
    /// Writes the next `n` frames of a ring.
    #[inline]
    pub(super) fn write(
        &mut self,
        (frames, ring): (&Frames, &impl Ring),
        n: u16,
        counts: &mut LeanPort,
    ) {
        match self {
            Self::Nothing => {}
            Self::Flows { of, next } => {
                for ahead in 0..n {
                    frames.set_flow(ring.buffer(ahead), *next);
                    counts.flows_sent += u64::from(*next);
                    *next = after(*next, *of);
                }
            }
            Self::Heads { all, next } => {
                for ahead in 0..n {
                    frames.set_head(ring.buffer(ahead), &all[*next % all.len()]);
                    *next = next.wrapping_add(1);
                }
            }
            Self::Connections { template, of, next } => {
                for ahead in 0..n {
                    template.write_ports(frames, ring.buffer(ahead), *next);
                    *next = after(*next, *of);
                }
            }
        }
    }
}
