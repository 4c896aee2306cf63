//! Log of access lists: a line for each new flow that a rule with `log` has decided, up to the
//! rule's rate.

use std::collections::HashMap;
use std::time::Duration;

use policy::Decision;
use policy::acl::{RuleId, RuleInfo};
use port::EventLimiter;
use wire::flow::FlowKey;

const SECOND: Duration = Duration::from_secs(1);
/// Rules whose limiters are kept, unless more rules are active.
const MAX_LIMITERS: usize = 4096;

/// Limiters of the rules that have logged.
#[derive(Debug, Default)]
pub(super) struct AccessLog {
    limiters: HashMap<RuleId, EventLimiter>,
    /// Number of limiters at which idle ones are removed.
    forget_at: usize,
}

impl AccessLog {
    /// Returns whether a rule may write a line: `Some` with the number of lines suppressed before.
    fn may_write(&mut self, now: Duration, rule: &RuleInfo) -> Option<u64> {
        let per_second = rule.log?.per_second;
        if self.limiters.len() >= self.forget_at.max(MAX_LIMITERS) {
            self.limiters.retain(|_, lines| lines.is_needed(now));
            self.forget_at = 2 * self.limiters.len();
        }
        let lines = self.limiters.entry(rule.id);
        let lines = lines.or_insert_with(|| EventLimiter::new(per_second, SECOND));
        lines.admit(now)
    }

    /// Writes the log lines of a decision about a frame from this port.
    pub(super) fn write(&mut self, now: Duration, key: &FlowKey, decision: &Decision, port: &str) {
        for ruling in decision.rulings() {
            let Some(rule) = ruling.rule() else {
                continue;
            };
            let Some(suppressed) = self.may_write(now, rule) else {
                continue;
            };
            let did = crate::trace::done(rule.verdict);
            tracing::info!(
                target: "acl",
                acl = %rule.list,
                rule = %rule.name,
                port,
                flow = %key.in_words(),
                suppressed,
                "{did}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use policy::acl::{LogLimit, Verdict};

    use super::*;

    #[test]
    fn each_of_many_rules_keeps_to_its_own_limit() {
        let name: Arc<str> = "rule".into();
        let rule = |n: u64| RuleInfo {
            id: RuleId(n),
            list: Arc::clone(&name),
            name: Arc::clone(&name),
            verdict: Verdict::Drop,
            class: None,
            log: Some(LogLimit { per_second: 1 }),
        };
        let mut log = AccessLog::default();
        let mut lines = |ms| {
            let at = Duration::from_millis(ms);
            let lines = (0..5000).filter_map(|n| log.may_write(at, &rule(n)));
            lines.collect::<Vec<_>>()
        };
        assert_eq!(lines(5000), [0; 5000]);
        assert_eq!(lines(5001), [0; 0]);
        assert_eq!(lines(5999), [0; 0]);
        assert_eq!(lines(6000), [2; 5000]);
        assert_eq!(lines(9000), [0; 5000]);
        // Idle limiters are removed in time.
        for n in 0..100_000 {
            log.may_write(Duration::from_secs(10 + n / 100), &rule(10_000 + n));
        }
        assert!(log.limiters.len() < 20_000, "{}", log.limiters.len());
    }
}
