//! When each VMM is searched next.
//!
//! A search reads what a VMM has chosen, so events cause it: a connection that comes, other names
//! to search for, or a further thread. Between searches a VMM is looked at, which is one system
//! call whatever it has chosen: a vCPU that is plugged in is a further thread. At most
//! [`LOOKS_PER_SECOND`] VMMs are looked at in a second, however many there are.
//!
//! ```text
//! event    DELAYS   searched    known:   looked at each INTERVAL
//! -----> x--x-----x--------x--> unknown: looked at each LATER; searched after FRAMES frames to the
//!                                        guest, and now and then if it uses KVM
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vcpus::vcpus::activity::FRAMES;

/// Delays of searches after an event: VMMs start vCPU threads late. The first one also combines
/// connections that come together.
pub(super) const DELAYS: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
];
/// Interval of later visits: 30 seconds.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);
/// Next visit while vCPUs are unknown, and no evidence comes: 5 seconds.
pub(super) const LATER: Duration = Duration::from_secs(5);
/// Number of times that the interval between searches without success is doubled: up to 80 seconds.
const MAX_DOUBLINGS: u32 = 4;
/// VMMs that are looked at in a second.
const LOOKS_PER_SECOND: usize = 128;
/// Minimum time until the next search for each entry that the last one has read: 2 milliseconds. So
/// a VMM with all the threads and descriptors that it can have costs a thousandth of a core.
const PER_ENTRY: Duration = Duration::from_millis(2);
/// Visits are due at multiples of this, so that many have one wake-up: a second, and a tenth after
/// an event.
const GRID: Duration = Duration::from_secs(1);
const EVENT_GRID: Duration = DELAYS[0];

/// Question that a search has left open about a VMM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Question {
    /// Nothing: a further vCPU would be a further thread.
    #[default]
    Nothing,
    /// Frames to the guest may tell more; the vCPUs are known so far, or not.
    Frames { found: bool },
    /// Another search may tell more by itself; as above.
    Search { found: bool },
}

impl Question {
    /// Returns the time between two visits.
    const fn pause(self) -> Duration {
        match self {
            Self::Nothing | Self::Frames { found: true } | Self::Search { found: true } => INTERVAL,
            Self::Frames { found: false } | Self::Search { found: false } => LATER,
        }
    }
}

/// Result of a search, as far as it matters for the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SearchReport {
    pub(super) open: Question,
    /// Time of the next search while evidence comes.
    pub(super) soon: Option<Duration>,
    /// Entries of directories that were read.
    pub(super) entries: usize,
}

/// State of a VMM at a moment: another one shows that there is something new.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct VmmState {
    /// Number of its threads; `None` if it is hidden.
    pub(super) threads: Option<u64>,
    /// Frames that its guest has received.
    pub(super) frames: u64,
}

/// The visits of one VMM.
#[derive(Debug, Default)]
struct Visits {
    at: Option<Duration>,
    /// Searches since the last event, up to the number of delays.
    searches: usize,
    /// Searches without success since then.
    failures: u32,
    open: Question,
    /// State before the last search.
    seen: VmmState,
    /// The next visit is a search.
    is_search: bool,
    /// A visit from this time on is a search.
    search_by: Option<Duration>,
}

impl Visits {
    /// Returns whether a search may find something else than the last one.
    fn is_new(&self, now: Duration, seen: VmmState) -> bool {
        let has_frames = || seen.frames.abs_diff(self.seen.frames) >= FRAMES;
        self.is_search
            || seen.threads != self.seen.threads
            || self.search_by.is_some_and(|by| by <= now)
            || (self.open != Question::Nothing && has_frames())
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    vmms: BTreeMap<u32, Visits>,
    /// VMMs to search, by time.
    searches: BTreeSet<(Duration, u32)>,
    /// VMMs to look at, by time.
    looks: BTreeSet<(Duration, u32)>,
    /// No look before this time: there were [`LOOKS_PER_SECOND`].
    no_look_until: Duration,
}

/// Returns the next multiple of `grid`.
fn round_up(time: Duration, grid: Duration) -> Duration {
    let (time, grid) = (time.as_nanos() as u64, grid.as_nanos() as u64);
    Duration::from_nanos(time.next_multiple_of(grid))
}

/// Takes the first VMM of a queue, if it is due.
fn pop_due(queue: &mut BTreeSet<(Duration, u32)>, now: Duration) -> Option<u32> {
    let (at, _) = queue.first()?;
    let is_due = *at <= now;
    is_due
        .then(|| queue.pop_first())
        .flatten()
        .map(|(_, vmm)| vmm)
}

impl Schedule {
    /// Notes an event of a VMM, which may be new: it is searched soon, and a few times later.
    pub(super) fn note_event(&mut self, now: Duration, vmm: u32) {
        let visits = self.vmms.entry(vmm).or_default();
        (visits.searches, visits.failures, visits.is_search) = (0, 0, true);
        let soon = round_up(now + DELAYS[0], EVENT_GRID);
        let at = visits.at.map_or(soon, |at| at.min(soon));
        self.visit_at(vmm, at);
    }

    /// Forgets VMMs that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        self.vmms.retain(|vmm, _| is_there(*vmm));
        self.searches.retain(|(_, vmm)| is_there(*vmm));
        self.looks.retain(|(_, vmm)| is_there(*vmm));
    }

    /// Returns the time of the next visit.
    pub(super) fn next(&self) -> Option<Duration> {
        let search = self.searches.first().map(|(at, _)| *at);
        let look = self.looks.first();
        let look = look.map(|(at, _)| self.no_look_until.max(*at));
        search.into_iter().chain(look).min()
    }

    /// Makes the visits that are due: looks at VMMs with `look`, and returns those that must be
    /// searched.
    pub(super) fn visit(&mut self, now: Duration, look: impl Fn(u32) -> VmmState) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        while let Some(vmm) = pop_due(&mut self.searches, now) {
            self.take_if_new(now, vmm, look(vmm));
            found.insert(vmm);
        }
        if now < self.no_look_until {
            return found;
        }
        for _ in 0..LOOKS_PER_SECOND {
            let Some(vmm) = pop_due(&mut self.looks, now) else {
                return found;
            };
            match self.take_if_new(now, vmm, look(vmm)) {
                None => drop(found.insert(vmm)),
                Some(pause) => self.visit_at(vmm, round_up(now + pause, GRID)),
            }
        }
        self.no_look_until = round_up(now + GRID, GRID);
        found
    }

    /// Notes a visit. Returns the time until the next one, if there is nothing new.
    fn take_if_new(&mut self, now: Duration, vmm: u32, seen: VmmState) -> Option<Duration> {
        let visits = self.vmms.get_mut(&vmm)?;
        visits.at = None;
        if !visits.is_new(now, seen) {
            return Some(visits.open.pause());
        }
        (visits.seen, visits.is_search) = (seen, false);
        None
    }

    /// Notes the end of a search.
    pub(super) fn note_search(&mut self, now: Duration, vmm: u32, searched: &SearchReport) {
        let Some(visits) = self.vmms.get_mut(&vmm) else {
            return;
        };
        visits.open = searched.open;
        visits.searches = (visits.searches + 1).min(DELAYS.len());
        let mut pause = searched.open.pause();
        visits.search_by = match searched.open {
            Question::Nothing | Question::Frames { .. } => None,
            Question::Search { found: true } => Some(now + pause),
            Question::Search { found: false } => {
                let doubled = pause * (1 << visits.failures);
                visits.failures = (visits.failures + 1).min(MAX_DOUBLINGS);
                Some(now + doubled)
            }
        };
        if let Some(delay) = DELAYS.get(visits.searches) {
            (pause, visits.is_search) = (pause.min(*delay), true);
        }
        if let Some(soon) = searched.soon {
            (pause, visits.is_search) = (pause.min(soon), true);
        }
        let cost = PER_ENTRY * u32::try_from(searched.entries).unwrap_or(u32::MAX);
        let grid = if pause < GRID { EVENT_GRID } else { GRID };
        // An event that came meanwhile is not put off.
        if visits.at.is_none() {
            self.visit_at(vmm, round_up(now + pause.max(cost), grid));
        }
    }

    /// Has a VMM visited at this time, and not at another one.
    fn visit_at(&mut self, vmm: u32, at: Duration) {
        let Some(visits) = self.vmms.get_mut(&vmm) else {
            return;
        };
        if let Some(before) = visits.at.replace(at) {
            self.searches.remove(&(before, vmm));
            self.looks.remove(&(before, vmm));
        }
        let queue = match visits.is_search {
            true => &mut self.searches,
            false => &mut self.looks,
        };
        queue.insert((at, vmm));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const VMM: u32 = 7;
    const SEEN: VmmState = VmmState {
        threads: Some(3),
        frames: 0,
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Lets time pass from visit to visit. Returns the times of searches, and the number of looks.
    fn run(
        schedule: &mut Schedule,
        until: Duration,
        seen: impl Fn(Duration) -> VmmState,
        searched: SearchReport,
    ) -> (Vec<u128>, usize) {
        let (mut searches, mut looks) = (Vec::new(), 0);
        while let Some(now) = schedule.next().filter(|now| *now <= until) {
            let calls = Cell::new(0);
            let found = schedule.visit(now, |_| {
                calls.set(calls.get() + 1);
                seen(now)
            });
            assert!(calls.get() <= LOOKS_PER_SECOND + found.len());
            looks += calls.get() - found.len();
            for vmm in found {
                schedule.note_search(now, vmm, &searched);
                searches.push(now.as_millis());
            }
        }
        (searches, looks)
    }

    #[test]
    fn a_connection_is_searched_a_few_times_and_then_looked_at() {
        let mut schedule = Schedule::default();
        schedule.note_event(seconds(10), VMM);
        let all = run(
            &mut schedule,
            seconds(1000),
            |_| SEEN,
            SearchReport::default(),
        );
        assert_eq!(all.0, [10_100, 12_000, 16_000, 31_000]);
        assert_eq!(all.1, 32, "a look each half minute");
        schedule.retain(|_| false);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_further_thread_is_searched_for_and_frames_where_they_may_tell() {
        let threads = |now: Duration| VmmState {
            threads: Some(3 + u64::from(now > seconds(100))),
            ..SEEN
        };
        let frames = |now: Duration| VmmState {
            frames: if now > seconds(100) { FRAMES } else { 0 },
            ..SEEN
        };
        let with = |open| SearchReport {
            open,
            ..SearchReport::default()
        };
        type Sight<'a> = &'a dyn Fn(Duration) -> VmmState;
        let cases: [(Question, Sight<'_>, &[u128]); 3] = [
            (Question::Nothing, &threads, &[111_000]),
            (Question::Nothing, &frames, &[]),
            (Question::Frames { found: false }, &frames, &[101_000]),
        ];
        for (open, seen, later) in cases {
            let mut schedule = Schedule::default();
            schedule.note_event(Duration::ZERO, VMM);
            let (searches, _) = run(&mut schedule, seconds(1000), seen, with(open));
            let first: Vec<_> = searches.iter().filter(|at| **at > 60_000).collect();
            assert!(first.iter().copied().eq(later), "{open:?}: {searches:?}");
        }
    }

    #[test]
    fn without_success_searches_become_less_frequent() {
        let mut schedule = Schedule::default();
        schedule.note_event(Duration::ZERO, VMM);
        let searched = SearchReport {
            open: Question::Search { found: false },
            ..SearchReport::default()
        };
        let (searches, _) = run(&mut schedule, seconds(1000), |_| SEEN, searched);
        let pauses: Vec<_> = searches.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(
            pauses.is_sorted() && pauses.last() == Some(&80_000),
            "{pauses:?}"
        );
    }

    /// The most that a VMM can have: 2048 threads and 65536 descriptors.
    #[test]
    fn a_vmm_that_is_long_to_read_is_read_rarely() {
        let mut schedule = Schedule::default();
        schedule.note_event(Duration::ZERO, VMM);
        let searched = SearchReport {
            open: Question::Search { found: false },
            soon: Some(seconds(1)),
            entries: 2048 + 65_536,
        };
        let (searches, _) = run(&mut schedule, seconds(3600), |_| SEEN, searched);
        let in_an_hour = searches.len() * searched.entries;
        assert!(
            in_an_hour < 3600 * 600,
            "600 entries a second: {in_an_hour}"
        );
    }

    #[test]
    fn the_looks_of_a_second_do_not_grow_with_the_vmms() {
        let per_second = |vmms: u32| {
            let mut schedule = Schedule::default();
            (0..vmms).for_each(|vmm| schedule.note_event(Duration::ZERO, vmm));
            run(
                &mut schedule,
                seconds(100),
                |_| SEEN,
                SearchReport::default(),
            );
            let (searches, looks) = run(
                &mut schedule,
                seconds(700),
                |_| SEEN,
                SearchReport::default(),
            );
            assert!(searches.is_empty());
            looks / 600
        };
        assert_eq!(per_second(300), 10);
        assert_eq!(per_second(1000), 33);
        assert_eq!([5000, 20_000].map(per_second), [LOOKS_PER_SECOND; 2]);
    }

    #[test]
    fn an_event_during_a_search_is_not_lost() {
        let mut schedule = Schedule::default();
        schedule.note_event(Duration::ZERO, VMM);
        let found = schedule.visit(seconds(1), |_| SEEN);
        assert!(found.contains(&VMM));
        schedule.note_event(seconds(1), VMM);
        schedule.note_search(seconds(9), VMM, &SearchReport::default());
        assert_eq!(schedule.next(), Some(Duration::from_millis(1100)));
    }
}
