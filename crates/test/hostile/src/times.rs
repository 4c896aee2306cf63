//! Percentiles, and what they should be.

use std::fmt;
use std::time::Duration;

use super::honest::Samples;

/// An honest VMM's message is answered within this, in 99 of 100 cases.
const MESSAGE_P99: Duration = Duration::from_millis(5);
/// The p99 of honest frames is at most so many times that beside the burner.
const FRAMES_FACTOR: f64 = 2.0;

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// How many.
    pub count: usize,
    /// Half of them are not above this.
    pub p50: f64,
    /// 99 of 100 are not above this.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl Times {
    fn of(samples: impl Iterator<Item = u64>) -> Self {
        let mut all: Vec<u64> = samples.collect();
        all.sort_unstable();
        let at = |share: f64| {
            let rank = (share * all.len() as f64).ceil().max(1.0) as usize;
            all.get(rank - 1).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        Self {
            count: all.len(),
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As text of its own, so that a width counts.
        f.pad(&format!("{:.0}/{:.0}/{:.0}", self.p50, self.p99, self.max))
    }
}

/// How late honest frames and messages were.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latencies {
    /// Frames of all pairs.
    pub frames: Times,
    /// Messages of a VMM.
    pub messages: Times,
}

impl Latencies {
    pub(super) fn of<'a>(all: impl Iterator<Item = &'a Samples> + Clone) -> Self {
        let frames = all.clone().flat_map(|samples| &samples.frames);
        let messages = all.flat_map(|samples| &samples.messages);
        Self {
            frames: Times::of(frames.copied()),
            messages: Times::of(messages.copied()),
        }
    }

    /// In words, when the p99 of messages is above its limit.
    pub(super) fn slow_messages(&self) -> Option<String> {
        let limit = MESSAGE_P99.as_secs_f64() * 1e6;
        let p99 = self.messages.p99;
        (p99 > limit)
            .then(|| format!("p99 of an honest VMM's message is {p99:.0} us, more than {limit:.0}"))
    }

    /// In words, when the p99 of frames is above its limit.
    pub(super) fn slow_frames(&self, burner: &Self) -> Option<String> {
        let (p99, burner) = (self.frames.p99, &burner.frames);
        let slow = burner.count > 0 && p99 > FRAMES_FACTOR * burner.p99;
        slow.then(|| {
            format!(
                "p99 of honest frames is {p99:.0} us beside attackers, more than twice the {:.0} \
                 us beside the burner",
                burner.p99
            )
        })
    }
}
