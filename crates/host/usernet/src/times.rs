//! How long flows of each state may be silent.

use std::str::FromStr;

use crate::Nanos;

const S: Nanos = 1_000_000_000;
/// Seconds that a time may have.
pub const SECONDS: std::ops::RangeInclusive<u32> = 10..=604_800;

/// The times of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time until a connection that is not established ends (RFC 5382, requirement 5: four minutes
    /// at least).
    pub half_open: Nanos,
    /// Silence after which both ends of a connection are probed; one that does not answer ends it
    /// (RFC 1122, section 4.2.3.6: two hours at least, by default; so RFC 5382, requirement 5).
    pub established: Nanos,
    /// The same if an end has closed its half: guests and hosts forget such a connection after a
    /// minute when its program is gone. One that lives and is silent stays.
    pub half_closed: Nanos,
    /// Silence of the guest after which a connection that both ends have closed ends without the
    /// last acknowledgement.
    pub closing: Nanos,
    /// A mapping of UDP (RFC 4787, requirement 5: two minutes at least).
    pub udp: Nanos,
    /// A mapping of UDP that has only asked DNS servers: a port of a well-known service may have
    /// less (requirement 5 a), and a resolver takes a new port for each question (RFC 5452, section
    /// 9.2).
    pub dns: Nanos,
    /// The identifier of echo requests (RFC 5508, requirement 2: a minute at least).
    pub ping: Nanos,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            half_open: 240 * S,
            established: 7200 * S,
            half_closed: 120 * S,
            closing: 240 * S,
            udp: 120 * S,
            dns: 10 * S,
            ping: 60 * S,
        }
    }
}

/// Why a text is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a state and seconds such as \"half-closed 300\"")]
pub struct TimeError;

/// One of the times, as text `half-closed 300`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    at: usize,
    seconds: u32,
}

impl Time {
    /// The words of all of them.
    pub const WORDS: [&str; 7] = [
        "half-open",
        "established",
        "half-closed",
        "closing",
        "udp",
        "dns",
        "ping",
    ];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS[self.at]
    }
}

impl FromStr for Time {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        let (word, seconds) = text.split_once(' ').ok_or(TimeError)?;
        let at = Self::WORDS.iter().position(|of| *of == word);
        let is_number = seconds.bytes().all(|byte| byte.is_ascii_digit());
        let seconds = seconds.parse().ok().filter(|_| is_number);
        let seconds = seconds.filter(|seconds| SECONDS.contains(seconds));
        Ok(Self {
            at: at.ok_or(TimeError)?,
            seconds: seconds.ok_or(TimeError)?,
        })
    }
}

impl Times {
    /// Sets one of them.
    #[must_use]
    pub fn with(mut self, time: Time) -> Self {
        *self.all()[time.at] = Nanos::from(time.seconds) * S;
        self
    }

    /// In the order of [`Time::WORDS`].
    fn all(&mut self) -> [&mut Nanos; Time::WORDS.len()] {
        [
            &mut self.half_open,
            &mut self.established,
            &mut self.half_closed,
            &mut self.closing,
            &mut self.udp,
            &mut self.dns,
            &mut self.ping,
        ]
    }

    /// Returns the seconds of all of them with their words.
    pub fn seconds(mut self) -> impl Iterator<Item = (&'static str, u64)> {
        let seconds = self.all().map(|time| *time / S);
        Time::WORDS.into_iter().zip(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_times() {
        for (at, word) in Time::WORDS.into_iter().enumerate() {
            let time: Time = format!("{word} 77").parse().unwrap();
            assert_eq!(time.word(), word);
            let changed = Times::default().with(time);
            let seconds: Vec<_> = changed.seconds().collect();
            assert_eq!(seconds[at], (word, 77));
            let same = seconds.into_iter().zip(Times::default().seconds());
            assert_eq!(same.filter(|(is, was)| is != was).count(), 1);
        }
        for text in [
            "",
            "udp",
            "udp ",
            "udp 9",
            "udp 604801",
            "udp +60",
            "udp 60 ",
            "udp  60",
            "UDP 60",
            "tcp 60",
            "udp 1e3",
            "udp 99999999999",
        ] {
            assert_eq!(text.parse::<Time>(), Err(TimeError), "{text}");
        }
    }
}
