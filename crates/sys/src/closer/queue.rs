//! Jobs by user and author, and the rules of their order. No step depends on the number of jobs:
//! the threads that hand jobs over wait for the lock.

use std::collections::{BTreeMap, VecDeque};

use super::{AUTHOR_JOBS, Job, USER_THREADS};
use crate::foreign::Author;

/// The jobs of one author, of which one may be under way.
struct Jobs {
    author: Author,
    waiting: VecDeque<Job>,
    is_busy: bool,
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
            is_busy: false,
        });
        let is_new = !jobs.is_busy && jobs.waiting.is_empty();
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
    pub(super) fn take(&mut self) -> Option<(Author, Job)> {
        let number = self.ready.pop_front()?;
        let user = self.users.get_mut(&number)?;
        user.is_ready = false;
        user.threads += 1;
        let id = user.turns.pop_front()?;
        self.note_ready(number);
        let jobs = self.authors.get_mut(&id)?;
        let job = jobs.waiting.pop_front()?;
        jobs.is_busy = true;
        Some((jobs.author, job))
    }

    /// Notes that a thread has done its job.
    pub(super) fn done(&mut self, author: Author) {
        self.jobs -= 1;
        let mut has_more = false;
        if let Some(jobs) = self.authors.get_mut(&author.id) {
            jobs.is_busy = false;
            has_more = !jobs.waiting.is_empty();
        }
        if !has_more {
            self.authors.remove(&author.id);
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

    /// Returns whether there is work for another thread.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether more may be received from an author.
    pub(super) fn admits(&self, author: Author) -> bool {
        let own = self.authors.get(&author.id);
        let own = own.map_or(0, |jobs| jobs.waiting.len() + usize::from(jobs.is_busy));
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
