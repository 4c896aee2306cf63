//! Notification rules of a port, and the vCPU states of its guest.

use std::sync::Arc;

use super::GuestPort;
use crate::ports::coalescing::{Activity, Processor, Rules, Vcpus};

impl GuestPort {
    /// Sets the rules by which the guest is notified.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Returns the rules by which the guest is notified.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns whether the vCPUs that use `pair` are known to run.
    #[must_use]
    pub fn runs(&self, pair: u16) -> bool {
        activity(self.vcpus.as_deref(), pair, self.usable_pairs) == Activity::Running
    }

    /// Subscribes to the block event of the vCPUs that use `pair`. Returns `false` without a source
    /// of such events.
    #[must_use]
    pub fn listen(&self, pair: u16) -> bool {
        let pairs = self.usable_pairs;
        let vcpus = self.vcpus.as_deref();
        vcpus.is_some_and(|vcpus| vcpus.listen(pair, pairs))
    }

    /// Returns the vCPU that uses `pair`; `None` if there are several or none is known.
    #[must_use]
    pub fn processor(&self, pair: u16) -> Option<Processor> {
        let vcpus = self.vcpus.as_deref()?;
        vcpus.processor(pair, self.usable_pairs)
    }

    /// Sets or removes the source of vCPU states.
    pub fn set_vcpus(&mut self, vcpus: Option<Arc<dyn Vcpus>>) {
        self.vcpus = vcpus;
    }
}

/// Returns the state of the vCPUs that use `pair`.
pub(super) fn activity(vcpus: Option<&dyn Vcpus>, pair: u16, pairs: u16) -> Activity {
    vcpus.map_or(Activity::Unknown, |vcpus| vcpus.activity(pair, pairs))
}
