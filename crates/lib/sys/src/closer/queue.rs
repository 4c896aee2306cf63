//! Jobs by user and author, and the rules of their order. No step depends on the number of jobs:
//! the threads that hand jobs over wait for the lock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::{AUTHOR_JOBS, Job, Report, STANDS, THREADS, USER_THREADS};
use crate::foreign::Author;

/// The jobs of one author, of which one may be under way.
struct Jobs {
    author: Author,
    waiting: VecDeque<Job>,
    /// Start of the job that is under way.
    busy_since: Option<Instant>,
    /// Start of the job that was reported as one that stands.
    stands_since: Option<Instant>,
}

impl Jobs {
    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.busy_since.is_some())
    }
}

/// The authors of one user.
#[derive(Default)]
struct User {
    jobs: usize,
    threads: usize,
    /// Authors with jobs of which none is under way, in turn.
    turns: VecDeque<u64>,
    /// The user is in the queue of those with work for another thread.
    is_ready: bool,
}

/// All jobs.
pub(super) struct Queue {
    /// Number of threads; zero until they have started.
    pub(super) threads: usize,
    /// Most jobs of all authors.
    pub(super) share: usize,
    authors: BTreeMap<u64, Jobs>,
    users: BTreeMap<Option<u32>, User>,
    /// Users with work for another thread, in turn.
    ready: VecDeque<Option<u32>>,
    jobs: usize,
    /// Authors with a job under way.
    under_way: Vec<u64>,
    /// Authors that were reported and have no job any more.
    pub(super) ended: Vec<Report>,
    /// The thread that reports wakes up by itself.
    pub(super) is_watched: bool,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self {
            threads: 0,
            share: usize::MAX,
            authors: BTreeMap::new(),
            users: BTreeMap::new(),
            ready: VecDeque::new(),
            jobs: 0,
            under_way: Vec::new(),
            ended: Vec::new(),
            is_watched: false,
        }
    }

    /// Returns the number of jobs that are not done.
    pub(super) fn jobs(&self) -> usize {
        self.jobs
    }

    /// Adds a job. Returns whether there is work for another thread that was not there before. The
    /// job of an author that has others is done by the thread that is at them.
    pub(super) fn add(&mut self, author: Author, job: Job) -> bool {
        let jobs = self.authors.entry(author.id).or_insert_with(|| Jobs {
            author,
            waiting: VecDeque::new(),
            busy_since: None,
            stands_since: None,
        });
        let is_new = jobs.len() == 0;
        jobs.waiting.push_back(job);
        let user = self.users.entry(author.user).or_default();
        user.jobs += 1;
        self.jobs += 1;
        if !is_new {
            return false;
        }
        user.turns.push_back(author.id);
        self.note_ready(author.user)
    }

    /// Queues a user if it has work for another thread. Returns whether it was not queued before.
    fn note_ready(&mut self, number: Option<u32>) -> bool {
        let Some(user) = self.users.get_mut(&number) else {
            return false;
        };
        let is_new = !user.is_ready && !user.turns.is_empty() && user.threads < USER_THREADS;
        if is_new {
            user.is_ready = true;
            self.ready.push_back(number);
        }
        is_new
    }

    /// Takes the next job for a thread: of the next user that has not as many threads as allowed,
    /// of the author whose turn it is.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Author, Job)> {
        let number = self.ready.pop_front()?;
        let user = self.users.get_mut(&number)?;
        user.is_ready = false;
        user.threads += 1;
        let id = user.turns.pop_front()?;
        self.note_ready(number);
        let jobs = self.authors.get_mut(&id)?;
        let job = jobs.waiting.pop_front()?;
        jobs.busy_since = Some(now);
        self.under_way.push(id);
        Some((jobs.author, job))
    }

    /// Notes that a thread has done its job.
    pub(super) fn done(&mut self, author: Author, now: Instant) {
        self.jobs -= 1;
        self.under_way.retain(|id| *id != author.id);
        let mut has_more = false;
        if let Some(jobs) = self.authors.get_mut(&author.id) {
            jobs.busy_since = None;
            has_more = !jobs.waiting.is_empty();
        }
        if !has_more {
            let jobs = self.authors.remove(&author.id);
            let stood = jobs.and_then(|jobs| jobs.stands_since);
            // Reports that were not taken are not replaced.
            if let Some(since) = stood.filter(|_| self.ended.len() < THREADS) {
                let time = now.saturating_duration_since(since);
                self.ended.push(Report::ended(author, time));
            }
        }
        let Some(user) = self.users.get_mut(&author.user) else {
            return;
        };
        user.jobs -= 1;
        user.threads -= 1;
        user.turns.extend(has_more.then_some(author.id));
        if user.jobs == 0 {
            self.users.remove(&author.user);
        }
        self.note_ready(author.user);
    }

    /// Takes the reports that are due: authors with a job that stands for [`STANDS`], once until
    /// all their jobs are done, and then that.
    pub(super) fn take_reports(&mut self, now: Instant) -> Vec<Report> {
        let mut reports = std::mem::take(&mut self.ended);
        for id in &self.under_way {
            let Some(jobs) = self.authors.get_mut(id) else {
                continue;
            };
            let since = jobs.busy_since.filter(|since| *since + STANDS <= now);
            if let (Some(since), None) = (since, jobs.stands_since) {
                jobs.stands_since = Some(since);
                let time = now.saturating_duration_since(since);
                reports.push(Report::of(jobs.author, time, jobs.waiting.len()));
            }
        }
        reports
    }

    /// Returns the time of the next report, if a job is under way that may need one.
    pub(super) fn next_report(&self) -> Option<Instant> {
        let jobs = self.under_way.iter().filter_map(|id| self.authors.get(id));
        let new = jobs.filter(|jobs| jobs.stands_since.is_none());
        let starts = new.filter_map(|jobs| jobs.busy_since);
        starts.min().map(|since| since + STANDS)
    }

    /// Returns whether reports can be taken already.
    pub(super) fn has_reports(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Returns whether there is work for another thread.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether more may be received from an author.
    pub(super) fn admits(&self, author: Author) -> bool {
        let own = self.authors.get(&author.id).map_or(0, Jobs::len);
        own < AUTHOR_JOBS.min(self.share / 16)
    }

    /// Returns whether a user may have a further connection.
    pub(super) fn admits_user(&self, user: Option<u32>) -> bool {
        let own = self.users.get(&user).map_or(0, |user| user.jobs);
        own < self.share.saturating_sub(self.jobs)
    }

    /// Returns whether all have used up their share.
    pub(super) fn is_full(&self) -> bool {
        self.jobs >= self.share
    }
}
