//! Jobs by author, and the rules of their order.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::{AUTHOR_JOBS, Job, Standing, THREADS, USER_THREADS};
use crate::foreign::Author;

/// The jobs of one author, of which one may be under way.
struct Jobs {
    author: Author,
    waiting: VecDeque<Job>,
    is_busy: bool,
}

/// Numbers of one user.
#[derive(Clone, Copy, Default)]
struct User {
    jobs: usize,
    threads: usize,
}

/// All jobs.
pub(super) struct Queue {
    /// Number of threads; zero until they have started.
    pub(super) threads: usize,
    /// Most jobs of all authors.
    pub(super) share: usize,
    authors: BTreeMap<u64, Jobs>,
    /// Authors with jobs of which none is under way, in turn.
    turns: VecDeque<u64>,
    users: BTreeMap<Option<u32>, User>,
    /// Authors of the jobs under way, by thread, with the times of their starts.
    busy: [Option<(Author, Instant)>; THREADS],
    jobs: usize,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self {
            threads: 0,
            share: usize::MAX,
            authors: BTreeMap::new(),
            turns: VecDeque::new(),
            users: BTreeMap::new(),
            busy: [None; THREADS],
            jobs: 0,
        }
    }

    /// Returns the number of jobs that are not done.
    pub(super) fn jobs(&self) -> usize {
        self.jobs
    }

    /// Adds a job.
    pub(super) fn add(&mut self, author: Author, job: Job) {
        let jobs = self.authors.entry(author.id).or_insert_with(|| Jobs {
            author,
            waiting: VecDeque::new(),
            is_busy: false,
        });
        if !jobs.is_busy && jobs.waiting.is_empty() {
            self.turns.push_back(author.id);
        }
        jobs.waiting.push_back(job);
        self.users.entry(author.user).or_default().jobs += 1;
        self.jobs += 1;
    }

    /// Takes the next job for a thread: of the author whose turn is first, unless as many threads
    /// as allowed are busy for its user.
    pub(super) fn take(&mut self, thread: usize, now: Instant) -> Option<(Author, Job)> {
        let free = |id: &u64| {
            let user = self.authors.get(id)?.author.user;
            let threads = self.users.get(&user)?.threads;
            (threads < USER_THREADS).then_some(())
        };
        let at = self.turns.iter().position(|id| free(id).is_some())?;
        let id = self.turns.remove(at)?;
        let jobs = self.authors.get_mut(&id)?;
        let job = jobs.waiting.pop_front()?;
        jobs.is_busy = true;
        let author = jobs.author;
        self.users.entry(author.user).or_default().threads += 1;
        self.busy[thread] = Some((author, now));
        Some((author, job))
    }

    /// Notes that a thread has done its job. Returns whether another thread may have work now.
    pub(super) fn done(&mut self, thread: usize, author: Author) -> bool {
        self.busy[thread] = None;
        self.jobs -= 1;
        if let Some(user) = self.users.get_mut(&author.user) {
            user.jobs -= 1;
            user.threads -= 1;
            if user.jobs == 0 {
                self.users.remove(&author.user);
            }
        }
        if let Some(jobs) = self.authors.get_mut(&author.id) {
            jobs.is_busy = false;
            if jobs.waiting.is_empty() {
                self.authors.remove(&author.id);
            } else {
                self.turns.push_back(author.id);
            }
        }
        self.turns.len() > 1
    }

    /// Returns whether more may be received from an author.
    pub(super) fn admits(&self, author: Author) -> bool {
        let own = self.authors.get(&author.id);
        let own = own.map_or(0, |jobs| jobs.waiting.len() + usize::from(jobs.is_busy));
        let user = self.users.get(&author.user).map_or(0, |user| user.jobs);
        own < AUTHOR_JOBS && user < self.share.saturating_sub(self.jobs)
    }

    /// Returns whether all have used up their share.
    pub(super) fn is_full(&self) -> bool {
        self.jobs >= self.share
    }

    /// Returns the jobs that have been under way for so long.
    pub(super) fn standing(&self, least: Duration, now: Instant) -> Vec<Standing> {
        let busy = self.busy.iter().flatten();
        let standing = busy.map(|(author, start)| Standing {
            user: author.user,
            label: author.label,
            since: now.saturating_duration_since(*start),
        });
        standing.filter(|one| one.since >= least).collect()
    }
}
