//! When a guest is notified, and what is seen of its processors.

use std::sync::Arc;

use super::GuestPort;
use crate::batching::{Activity, Processor, Rules, Vcpus};

impl GuestPort {
    /// The same, whose guest is notified by these rules.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// By what rules the guest is notified.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Whether the guest is known to run that uses `pair`.
    #[must_use]
    pub fn runs(&self, pair: u16) -> bool {
        activity(self.vcpus.as_deref(), pair, self.usable_pairs) == Activity::Running
    }

    /// Has a bell rung when the guest blocks that uses `pair`; `false` where there is none.
    #[must_use]
    pub fn listen(&self, pair: u16) -> bool {
        let pairs = self.usable_pairs;
        let vcpus = self.vcpus.as_deref();
        vcpus.is_some_and(|vcpus| vcpus.listen(pair, pairs))
    }

    /// The one processor of the guest that uses `pair`, if that is known to be one.
    #[must_use]
    pub fn processor(&self, pair: u16) -> Option<Processor> {
        let vcpus = self.vcpus.as_deref()?;
        vcpus.processor(pair, self.usable_pairs)
    }

    /// From now on, it can be seen what the guest does; or not any more.
    pub fn watch(&mut self, vcpus: Option<Arc<dyn Vcpus>>) {
        self.vcpus = vcpus;
    }
}

/// What the guest does that uses `pair`, as far as that can be seen.
pub(super) fn activity(vcpus: Option<&dyn Vcpus>, pair: u16, pairs: u16) -> Activity {
    vcpus.map_or(Activity::Unknown, |vcpus| vcpus.activity(pair, pairs))
}
