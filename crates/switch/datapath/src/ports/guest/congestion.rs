//! Receivers without buffers.
//!
//! ```text
//!          no buffer in MAX_DRY_BATCHES consecutive batches
//!   [ tried ] ------------------------------------------> [ masked ]
//!       ^                                                     |
//!       '------- a buffer is available at the first check ----'
//! ```
//! A masked receiver costs a batch one check, whatever the number of frames: no buffers are taken
//! ahead or returned, no frame is segmented, checksummed or tagged for it. (Ram, Cox and Rixner,
//! "Hyper-Switch", USENIX ATC 2013: an interface is masked while its receive ring is full.)

use super::backlog::Backlog;

/// Consecutive batches without a buffer after which a receiver is masked.
const MAX_DRY_BATCHES: u8 = 4;

/// Congestion state of a to-guest queue; see the module.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// Consecutive batches in which frames needed a buffer and there was none.
    dry: u8,
    /// Whether a frame of this batch found no buffer.
    missed: bool,
    /// Whether a frame of this batch found a buffer.
    found: bool,
    /// Result of this batch's check.
    masks: Option<bool>,
    /// Time since which there is no buffer, nanoseconds; 0: there are buffers.
    empty_since: u64,
    /// Earlier time without buffers, nanoseconds.
    empty_ns: u64,
    /// Frames that wait for the translation of buffers.
    pub(super) backlog: Backlog,
}

impl Congestion {
    /// Returns whether the receiver is masked in this batch; `shows_any` checks for buffers.
    #[inline]
    pub(super) fn masks(&mut self, shows_any: impl FnOnce() -> bool) -> bool {
        self.dry >= MAX_DRY_BATCHES && *self.masks.get_or_insert_with(|| !shows_any())
    }

    /// Notes that so many buffers were used.
    #[inline(always)]
    pub(super) fn found(&mut self, buffers: usize) {
        self.found |= buffers > 0;
    }

    /// Notes that a frame found no buffer.
    pub(super) fn found_none(&mut self) {
        self.missed = true;
    }

    /// Ends the batch.
    #[inline]
    pub(super) fn end_batch(&mut self, now: u64) {
        if self.found {
            self.dry = 0;
            if self.empty_since != 0 {
                self.empty_ns += now.saturating_sub(self.empty_since);
                self.empty_since = 0;
            }
        }
        if self.missed {
            self.ran_out(now);
        }
        (self.missed, self.found, self.masks) = (false, false, None);
    }

    #[cold]
    fn ran_out(&mut self, now: u64) {
        if !self.found {
            self.dry = (self.dry + 1).min(MAX_DRY_BATCHES);
        }
        if self.empty_since == 0 {
            self.empty_since = now.max(1);
        }
    }

    /// Returns the time during which a frame needed a buffer and there was none, until one was
    /// used, nanoseconds.
    pub(super) fn full_ns(&self) -> u64 {
        self.empty_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes a batch of three frames, of which `buffers` find a buffer. Returns whether the
    /// receiver was masked, and the number of checks.
    fn batch(congestion: &mut Congestion, buffers: usize) -> (bool, u32) {
        let mut looks = 0;
        let mut masked = false;
        for frame in 0..3 {
            masked = congestion.masks(|| {
                looks += 1;
                buffers > 0
            });
            if !masked && frame < buffers {
                congestion.found(1);
            } else if !masked {
                congestion.found_none();
            }
        }
        congestion.end_batch(7);
        (masked, looks)
    }

    #[test]
    fn many_dry_batches_mask_and_one_buffer_unmasks() {
        let mut congestion = Congestion::default();
        for _ in 0..MAX_DRY_BATCHES {
            assert_eq!(batch(&mut congestion, 0), (false, 0));
        }
        for _ in 0..1000 {
            assert_eq!(batch(&mut congestion, 0), (true, 1), "one look a batch");
        }
        assert_eq!(batch(&mut congestion, 1), (false, 1));
        for _ in 0..MAX_DRY_BATCHES {
            assert_eq!(batch(&mut congestion, 0), (false, 0), "from the beginning");
        }
        assert_eq!(batch(&mut congestion, 0), (true, 1));
    }

    #[test]
    fn the_time_without_buffers_is_counted() {
        let mut congestion = Congestion::default();
        let mut batch = |now, found, missed| {
            congestion.found(found);
            if missed {
                congestion.found_none();
            }
            congestion.end_batch(now);
            congestion.full_ns()
        };
        assert_eq!(
            [batch(10, 1, false), batch(20, 0, true), batch(30, 0, true)],
            [0; 3]
        );
        assert_eq!(batch(50, 3, false), 30, "since it was missed first");
        assert_eq!(batch(60, 1, true), 30, "some got one, and others did not");
        assert_eq!([batch(61, 0, false), batch(70, 1, false)], [30, 40]);
    }

    #[test]
    fn a_slow_receiver_is_not_masked() {
        let mut congestion = Congestion::default();
        for _ in 0..1000 {
            assert_eq!(batch(&mut congestion, 1), (false, 0));
        }
        // Batches without frames do not count.
        for _ in 0..1000 {
            congestion.end_batch(7);
        }
        assert_eq!(batch(&mut congestion, 0), (false, 0));
    }
}
