//! The log of access lists: a line for each new flow that a rule with a log has decided, and not more of them than it says.

use std::collections::HashMap;
use std::time::Duration;

use policy::acl::{RuleId, RuleInfo, Verdict};
use policy::{Decision, PortId};
use wire::flow::FlowKey;

use super::Engine;

const SECOND: Duration = Duration::from_secs(1);
/// Rules of which is remembered what they have logged; beyond that all begin anew.
const RULES: usize = 4096;

/// A second of one rule.
#[derive(Clone, Copy, Debug, Default)]
struct Lately {
    since: Duration,
    lines: u32,
    /// Lines that were left out since the last one that was not.
    left_out: u64,
}

impl Lately {
    /// Whether there may be one more line, and how many were left out before it.
    fn one_more(&mut self, now: Duration, per_second: u32) -> Option<u64> {
        if now.saturating_sub(self.since) >= SECOND {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines >= per_second {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// What rules have logged lately.
#[derive(Debug, Default)]
pub(super) struct AccessLog(HashMap<RuleId, Lately>);

impl AccessLog {
    /// Whether a rule may write a line, and how many it has left out before.
    fn may_write(&mut self, now: Duration, rule: &RuleInfo) -> Option<u64> {
        let per_second = rule.log?.per_second;
        if self.0.len() >= RULES && !self.0.contains_key(&rule.id) {
            self.0.clear();
        }
        let lately = self.0.entry(rule.id).or_default();
        lately.one_more(now, per_second)
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
    use super::*;

    #[test]
    fn a_second_has_so_many_lines_and_the_next_says_how_many_were_left_out() {
        let mut lately = Lately::default();
        let mut at = |ms| lately.one_more(Duration::from_millis(ms), 2);
        assert_eq!(
            [at(0), at(1), at(2), at(999)],
            [Some(0), Some(0), None, None]
        );
        assert_eq!([at(1000), at(1001), at(1002)], [Some(2), Some(0), None]);
        assert_eq!(at(5000), Some(1));
    }
}
