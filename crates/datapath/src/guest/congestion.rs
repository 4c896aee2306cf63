//! Receivers that show no buffers, and are left alone.
//!
//! ```text
//!             no buffer in MANY batches, one after the other
//!   [ tried ] -----------------------------------------------> [ masked ]
//!       ^                                                          |
//!       '---------- a buffer is there at a batch's first look -----'
//! ```
//! A masked receiver costs a batch one look, whatever the number of frames: nothing is taken ahead or given back, no
//! frame is cut, checksummed or tagged for it. (Ram, Cox and Rixner, "Hyper-Switch", USENIX ATC 2013: an interface
//! is masked while its receive ring is full.)

/// Batches after which looking for buffers frame by frame is over.
const MANY: u8 = 4;

/// See the module. Of a queue that takes frames to a guest.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// Batches one after the other in which frames wanted a buffer and there was not a single one.
    dry: u8,
    /// This batch wanted one and found none.
    missed: bool,
    /// This batch had one.
    found: bool,
    /// What this batch's look showed.
    masks: Option<bool>,
    /// Since when there is none, nanoseconds; 0: there are some.
    empty_since: u64,
    /// How long there was none before that.
    empty_ns: u64,
}

impl Congestion {
    /// Whether it is masked in this batch; `shows_any` looks whether there are buffers.
    #[inline]
    pub(super) fn masks(&mut self, shows_any: impl FnOnce() -> bool) -> bool {
        self.dry >= MANY && *self.masks.get_or_insert_with(|| !shows_any())
    }

    /// So many buffers were used.
    #[inline(always)]
    pub(super) fn found(&mut self, buffers: usize) {
        self.found |= buffers > 0;
    }

    /// A frame found none.
    pub(super) fn found_none(&mut self) {
        self.missed = true;
    }

    /// Nothing more comes for now.
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
            self.dry = (self.dry + 1).min(MANY);
        }
        if self.empty_since == 0 {
            self.empty_since = now.max(1);
        }
    }

    /// How long there was no buffer when one was wanted, until one was there, nanoseconds.
    pub(super) fn full_ns(&self) -> u64 {
        self.empty_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of three frames, of which `buffers` find a buffer. Whether it was masked, and how often it was looked.
    fn batch(congestion: &mut Congestion, buffers: usize) -> (bool, u32) {
        let mut looks = 0;
        let mut masked = false;
        for frame in 0..3 {
            masked = congestion.masks(|| {
                looks += 1;
                buffers > 0
            });
            match masked {
                true => {}
                false if frame < buffers => congestion.found(1),
                false => congestion.found_none(),
            }
        }
        congestion.end_batch(7);
        (masked, looks)
    }

    #[test]
    fn many_dry_batches_mask_and_one_buffer_unmasks() {
        let mut congestion = Congestion::default();
        for _ in 0..MANY {
            assert_eq!(batch(&mut congestion, 0), (false, 0));
        }
        for _ in 0..1000 {
            assert_eq!(batch(&mut congestion, 0), (true, 1), "one look a batch");
        }
        assert_eq!(batch(&mut congestion, 1), (false, 1));
        for _ in 0..MANY {
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
    fn who_is_only_slow_is_not_masked() {
        let mut congestion = Congestion::default();
        for _ in 0..1000 {
            assert_eq!(batch(&mut congestion, 1), (false, 0));
        }
        // Nor who was not sent anything.
        for _ in 0..1000 {
            congestion.end_batch(7);
        }
        assert_eq!(batch(&mut congestion, 0), (false, 0));
    }
}
