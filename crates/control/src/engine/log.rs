//! The log of access lists: a line for each new flow that a rule with a log has decided, and not more of them than it says.

use std::collections::HashMap;
use std::time::Duration;

use policy::acl::{RuleId, RuleInfo, Verdict};
use policy::{Decision, PortId};
use port::EventLimiter;
use wire::flow::FlowKey;

use super::Engine;

const SECOND: Duration = Duration::from_secs(1);
/// Rules of which is remembered what they have logged, unless more have lately.
const RULES: usize = 4096;

/// What rules have logged lately.
#[derive(Debug, Default)]
pub(super) struct AccessLog {
    lately: HashMap<RuleId, EventLimiter>,
    /// With so many, those are looked for that can be forgotten.
    forget_at: usize,
}

impl AccessLog {
    /// Whether a rule may write a line, and how many it has left out before.
    fn may_write(&mut self, now: Duration, rule: &RuleInfo) -> Option<u64> {
        let per_second = rule.log?.per_second;
        if self.lately.len() >= self.forget_at.max(RULES) {
            self.lately.retain(|_, lines| lines.is_needed(now));
            self.forget_at = 2 * self.lately.len();
        }
        let lines = self.lately.entry(rule.id);
        let lines = lines.or_insert_with(|| EventLimiter::new(per_second, SECOND));
        lines.once_more(now)
    }
}

impl Engine {
    /// Writes what the rules want written of a decision.
    pub(super) fn log_access(&mut self, now: Duration, key: &FlowKey, decision: &Decision) {
        for ruling in decision.rulings() {
            let Some(rule) = ruling.rule() else {
                continue;
            };
            let Some(left_out) = self.access_log.may_write(now, rule) else {
                continue;
            };
            let did = match rule.verdict {
                Verdict::Allow => "allowed",
                Verdict::Drop => "dropped",
                Verdict::Reject => "rejected",
            };
            let port = self.port_name(PortId(key.in_port()));
            tracing::info!(
                target: "acl",
                acl = %rule.list,
                rule = %rule.name,
                port,
                flow = %key.in_words(),
                left_out,
                "{did}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use policy::acl::LogLimit;

    use super::*;

    #[test]
    fn each_of_many_rules_keeps_to_its_own_limit() {
        let name: Arc<str> = "rule".into();
        let rule = |n: u64| RuleInfo {
            id: RuleId(n),
            list: Arc::clone(&name),
            name: Arc::clone(&name),
            verdict: Verdict::Drop,
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
        // Those that have nothing to say are forgotten in time.
        for n in 0..100_000 {
            log.may_write(Duration::from_secs(10 + n / 100), &rule(10_000 + n));
        }
        assert!(log.lately.len() < 20_000, "{}", log.lately.len());
    }
}
