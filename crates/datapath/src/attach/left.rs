//! Where the queues of connections stood that broke, for those that come next: a front end that dials again, maybe at
//! another port. Whether a position is a queue's own, the session finds out by its memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use virtio::vhost_user::Left;

/// For so long; front ends dial again within seconds.
const KEPT: Duration = Duration::from_secs(60);
/// Queues at most.
const QUEUES: usize = 1024;

/// See the module. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct LeftBehind(Rc<RefCell<VecDeque<(Instant, Left)>>>);

impl LeftBehind {
    /// Remembers these, the newest of all.
    pub fn add(&self, left: Vec<Left>) {
        let mut all = self.0.borrow_mut();
        let now = Instant::now();
        for left in left {
            all.push_front((now, left));
        }
        all.truncate(QUEUES);
    }

    /// All that are remembered, the newest first.
    #[must_use]
    pub fn all(&self) -> Vec<Left> {
        let mut all = self.0.borrow_mut();
        all.retain(|(at, _)| at.elapsed() < KEPT);
        all.iter().map(|(_, left)| left.clone()).collect()
    }
}
