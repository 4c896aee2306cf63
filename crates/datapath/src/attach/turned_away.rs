//! Connections that were closed as soon as they were made: a port has one guest.

use std::time::{Duration, Instant};

use super::pause::Pauses;

/// So long the port says of itself that it turns others away.
const SAID: Duration = Duration::from_secs(60);

/// Those of one port.
#[derive(Debug)]
pub(super) struct TurnedAway {
    count: u64,
    last: Instant,
    /// Of these, those that came while another connection was open.
    others: u64,
    last_other: Instant,
    pauses: Pauses,
}

impl Default for TurnedAway {
    fn default() -> Self {
        Self {
            count: 0,
            last: Instant::now(),
            others: 0,
            last_other: Instant::now(),
            pauses: Pauses::beside_another(),
        }
    }
}

impl TurnedAway {
    /// One more. While a connection is open nobody else is served anyway, so that there is time until the next one is looked at. A
    /// stranger at a free port has nobody wait who comes after it.
    pub(super) fn once_more(&mut self, other_is_open: bool) {
        let now = Instant::now();
        if other_is_open {
            self.others += 1;
            self.last_other = now;
            self.pauses.begin_again(now);
        }
        self.count += 1;
        self.last = now;
    }

    /// The connection that was open is over.
    pub(super) fn room_again(&mut self) {
        self.pauses.cut_short(Instant::now());
    }

    /// Times in which nobody is looked at.
    pub(super) fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// The same, for their ends.
    pub(super) fn pauses_mut(&mut self) -> &mut Pauses {
        &mut self.pauses
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// How long ago the last one was, in milliseconds.
    pub(super) fn ms_ago(&self) -> Option<u64> {
        (self.count > 0).then(|| self.last.elapsed().as_millis() as u64)
    }

    /// For people, while it is news.
    pub(super) fn words(&self) -> Option<String> {
        let (others, ago) = (self.others, self.last_other.elapsed());
        (others > 0 && ago < SAID).then(|| {
            let ago = ago.as_secs();
            format!("turned {others} other connections away, the last one {ago} s ago: does a second VMM use this socket?")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_beside_another_are_told_of_as_a_second_vmm() {
        let mut away = TurnedAway::default();
        away.once_more(false);
        assert_eq!((away.words(), away.count()), (None, 1));
        away.once_more(true);
        assert!(away.words().unwrap().starts_with("turned 1 other"));
        // News of others gets old, whoever comes later.
        away.last_other = Instant::now().checked_sub(SAID).unwrap();
        away.once_more(false);
        assert_eq!((away.words(), away.count()), (None, 3));
    }
}
