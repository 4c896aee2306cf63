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
    pub(super) fn end_batch(&mut self) {
        if self.found {
            self.dry = 0;
        } else if self.missed {
            self.dry = (self.dry + 1).min(MANY);
        }
        (self.missed, self.found, self.masks) = (false, false, None);
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
        congestion.end_batch();
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
    fn who_is_only_slow_is_not_masked() {
        let mut congestion = Congestion::default();
        for _ in 0..1000 {
            assert_eq!(batch(&mut congestion, 1), (false, 0));
        }
        // Nor who was not sent anything.
        for _ in 0..1000 {
            congestion.end_batch();
        }
        assert_eq!(batch(&mut congestion, 0), (false, 0));
    }
}
