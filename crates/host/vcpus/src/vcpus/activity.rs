//! vCPU threads by elimination: a thread that did not run while the guest received frames handled
//! none of them.
//!
//! ```text
//! window: SPAN to LONGEST, with FRAMES frames or more to the guest
//! +------+------+------+
//! |  ran |  ran |  ran |  thread A: may handle frames
//! |  ran |   -  |  ran |  thread B: did not run in a window, so it is a helper of the VMM
//! +------+------+------+
//! ```
//! The threads that ran in each of the last [`WINDOWS`] windows remain. If there are several, the
//! first thread of the process is not counted: it runs the event loop of every VMM known, and a VMM
//! without KVM passes all notifications through it. A thread of the VMM that is always busy with
//! something else (a disk's, say) may remain, but no thread that handles frames is left out. That
//! is the safe side: the guest counts as asleep when one of these threads sleeps, and is then
//! notified at once.
//!
//! Needs the run times of `/proc/PID/task/TID/schedstat` (Linux, `Documentation/scheduler`), which
//! every user may read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::MOST_FOLLOWED;

/// Least duration of a window.
pub const SPAN: Duration = Duration::from_secs(1);
/// Longest duration of a window: in a longer one, helpers run now and then, too.
pub const LONGEST: Duration = Duration::from_secs(10);
/// Least number of frames to the guest in a window.
pub const FRAMES: u64 = 16;
/// Number of windows that are compared.
pub const WINDOWS: usize = 3;

/// Time for which a thread has run, and how often it was put on a core.
pub type RunTime = (u64, u64);

/// The state of a VMM's threads at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The moment, on any clock.
    pub at: Duration,
    /// Frames that the guest has received so far.
    pub frames: u64,
    /// Run time of each thread.
    pub threads: BTreeMap<u32, RunTime>,
}

/// The threads of one VMM that ran in recent windows.
#[derive(Debug, Default)]
pub struct Record {
    /// Begin of the present window.
    begun: Option<Sample>,
    /// Threads that ran, for each window; the last one is the newest.
    windows: VecDeque<BTreeSet<u32>>,
}

/// Effect of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It begins a window, and ends none.
    Begins,
    /// It ends a window, and begins the next one.
    Ends,
    /// None: the present window is too short, or has too few frames. No sample needs to be taken.
    Nothing,
}

impl Record {
    /// Returns the effect of a sample at this moment, with so many frames.
    #[must_use]
    pub fn effect(&self, at: Duration, frames: u64) -> Effect {
        let Some(begun) = &self.begun else {
            return Effect::Begins;
        };
        let span = at.saturating_sub(begun.at);
        match frames.checked_sub(begun.frames) {
            // These counters belong to another connection.
            None => Effect::Begins,
            Some(arrived) if arrived >= FRAMES && (SPAN..=LONGEST).contains(&span) => Effect::Ends,
            Some(_) if span > LONGEST => Effect::Begins,
            Some(_) => Effect::Nothing,
        }
    }

    /// Notes a sample. Returns its effect.
    pub fn note(&mut self, sample: Sample) -> Effect {
        let effect = self.effect(sample.at, sample.frames);
        if effect == Effect::Nothing {
            return effect;
        }
        let begun = self.begun.replace(sample);
        let (Some(begun), Some(sample)) = (begun, &self.begun) else {
            return effect;
        };
        if begun.frames > sample.frames {
            self.windows.clear();
        }
        if effect == Effect::Ends {
            // A thread that was started in the window has run in it.
            let ran = |(thread, time): &(&u32, &RunTime)| begun.threads.get(thread) != Some(time);
            let ran = sample.threads.iter().filter(ran).map(|(thread, _)| *thread);
            self.windows.push_back(ran.collect());
            if self.windows.len() > WINDOWS {
                self.windows.pop_front();
            }
        }
        effect
    }

    /// Returns the number of windows that are still needed.
    #[must_use]
    pub fn needed(&self) -> usize {
        WINDOWS - self.windows.len()
    }

    /// Returns the threads that ran in each of the last windows; `first` is the first thread of the
    /// process. `None` before there were [`WINDOWS`] windows, or if no thread remains.
    #[must_use]
    pub fn vcpus(&self, first: u32) -> Option<Vec<u32>> {
        let newest = self
            .windows
            .back()
            .filter(|_| self.windows.len() == WINDOWS)?;
        let everywhere = |thread: &&u32| self.windows.iter().all(|ran| ran.contains(thread));
        let mut threads: Vec<u32> = newest.iter().filter(everywhere).copied().collect();
        if threads.len() > 1 {
            threads.retain(|thread| *thread != first);
        }
        threads.truncate(MOST_FOLLOWED);
        (!threads.is_empty()).then_some(threads)
    }
}

/// Returns the run times of a process's threads; those that have ended are left out.
#[must_use]
pub fn run_times(process: u32, threads: &[u32]) -> BTreeMap<u32, RunTime> {
    let time = |thread: &u32| {
        let path = format!("/proc/{process}/task/{thread}/schedstat");
        Some((*thread, parse(&std::fs::read_to_string(path).ok()?)?))
    };
    threads.iter().filter_map(time).collect()
}

/// Parses the line: nanoseconds on a core, nanoseconds of waiting for one, times on a core.
fn parse(line: &str) -> Option<RunTime> {
    let mut fields = line.split_whitespace();
    let ran = fields.next()?.parse().ok()?;
    Some((ran, fields.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEADER: u32 = 10;

    /// A VMM whose threads have run so often.
    #[derive(Default)]
    struct Vmm {
        record: Record,
        at: Duration,
        frames: u64,
        threads: BTreeMap<u32, RunTime>,
    }

    impl Vmm {
        fn of(threads: &[u32]) -> Self {
            let mut vmm = Self {
                threads: threads.iter().map(|thread| (*thread, (0, 0))).collect(),
                ..Self::default()
            };
            vmm.window(Duration::ZERO, 0, &[]);
            vmm
        }

        /// Lets these threads run, and some frames arrive, in such a time.
        fn window(&mut self, span: Duration, frames: u64, ran: &[u32]) {
            for thread in ran {
                self.threads.entry(*thread).or_default().1 += 1;
            }
            self.at += span;
            self.frames += frames;
            let _ = self.record.note(Sample {
                at: self.at,
                frames: self.frames,
                threads: self.threads.clone(),
            });
        }

        fn busy(&mut self, ran: &[u32]) {
            self.window(SPAN, FRAMES, ran);
        }

        fn vcpus(&self) -> Option<Vec<u32>> {
            self.record.vcpus(LEADER)
        }
    }

    #[test]
    fn idle_helpers_and_the_event_loop_are_no_vcpus() {
        let mut vmm = Vmm::of(&[LEADER, 11, 12, 13, 14]);
        for _ in 0..WINDOWS {
            assert_eq!(vmm.vcpus(), None);
            vmm.busy(&[LEADER, 12, 13]);
        }
        assert_eq!(vmm.vcpus(), Some(vec![12, 13]));
    }

    #[test]
    fn a_thread_that_ran_now_and_then_is_a_helper_until_it_runs_always() {
        let mut vmm = Vmm::of(&[LEADER, 11, 12]);
        vmm.busy(&[LEADER, 11, 12]);
        vmm.busy(&[LEADER, 12]);
        vmm.busy(&[LEADER, 11, 12]);
        assert_eq!(vmm.vcpus(), Some(vec![12]));
        vmm.busy(&[LEADER, 11, 12]);
        vmm.busy(&[LEADER, 11, 12]);
        assert_eq!(vmm.vcpus(), Some(vec![11, 12]));
    }

    #[test]
    fn the_only_thread_that_runs_handles_the_frames_whichever_it_is() {
        let mut vmm = Vmm::of(&[LEADER, 11]);
        for _ in 0..WINDOWS {
            vmm.busy(&[LEADER]);
        }
        assert_eq!(vmm.vcpus(), Some(vec![LEADER]));
    }

    #[test]
    fn without_frames_nothing_is_known() {
        let mut vmm = Vmm::of(&[LEADER, 11]);
        for _ in 0..10 {
            vmm.window(SPAN, 1, &[LEADER, 11]);
        }
        assert_eq!(vmm.vcpus(), None, "too few in all");
        for _ in 0..10 {
            vmm.window(SPAN / 10, FRAMES, &[LEADER, 11]);
        }
        assert_eq!(vmm.vcpus(), None, "one window");
        let mut idle = Vmm::of(&[LEADER, 11]);
        for _ in 0..WINDOWS {
            idle.busy(&[]);
        }
        assert_eq!(idle.vcpus(), None, "no thread ran");
    }

    #[test]
    fn a_window_that_was_too_long_begins_anew() {
        let mut vmm = Vmm::of(&[LEADER, 11, 12]);
        for _ in 0..WINDOWS {
            vmm.busy(&[LEADER, 11]);
        }
        vmm.window(2 * LONGEST, FRAMES, &[LEADER, 11, 12]);
        assert_eq!(vmm.vcpus(), Some(vec![11]), "as before");
        for missing in [true, true, false] {
            vmm.busy(&[LEADER, 12]);
            assert_eq!(vmm.vcpus() == Some(vec![12]), !missing);
        }
    }

    #[test]
    fn another_connection_begins_anew() {
        let mut vmm = Vmm::of(&[LEADER, 11]);
        for _ in 0..WINDOWS {
            vmm.busy(&[11]);
        }
        vmm.frames = 0;
        vmm.busy(&[LEADER]);
        assert_eq!(vmm.vcpus(), None);
    }

    #[test]
    fn run_times_of_this_process_are_read() {
        assert_eq!(parse("17 5 3\n"), Some((17, 3)));
        assert_eq!(parse("17 5"), None);
        assert_eq!(parse("a b c"), None);
        let own = std::process::id();
        let times = run_times(own, &[own, u32::MAX]);
        assert!(times.contains_key(&own) && times.len() == 1, "{times:?}");
    }

    proptest! {
        /// A thread that runs in every window is never left out, whatever the others do.
        #[test]
        fn no_thread_that_always_runs_is_left_out(
            others in prop::collection::vec(prop::collection::btree_set(11u32..16, 0..5), 3..12),
        ) {
            let mut vmm = Vmm::of(&[LEADER, 11, 12, 13, 14, 15, 20]);
            for ran in &others {
                let ran: Vec<u32> = ran.iter().copied().chain([LEADER, 20]).collect();
                vmm.busy(&ran);
            }
            let vcpus = vmm.vcpus().unwrap();
            prop_assert!(vcpus.contains(&20) && !vcpus.contains(&LEADER));
            let last = &others[others.len() - WINDOWS..];
            for thread in 11..16 {
                let always = last.iter().all(|ran| ran.contains(&thread));
                prop_assert_eq!(vcpus.contains(&thread), always);
            }
        }
    }
}
