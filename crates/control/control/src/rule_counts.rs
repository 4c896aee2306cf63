//! Counters of the rules of access lists.
//!
//! The switch counts frames per flow and sends differences; the sums are here, and those of the
//! rules that were hit last are in the state file.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::v1::{
    AccessCounts, AccessListSpec, AccessModel, CountsFilter, ListCounts, Problem, RuleCounts,
};
use ipc::rules::{MAX_COUNTED, RuleUse};
use policy::acl::RuleId;
use serde::{Deserialize, Serialize};

/// Most rules whose counters are in the state file.
const SAVED: usize = 4096;

/// Counters of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Number of frames.
    pub packets: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Time of the last frame, on the machine's monotonic clock.
    pub last: Duration,
}

/// Counters by rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(HashMap<RuleId, Count>);

impl Counts {
    /// Restores counters from [`latest`](Self::latest).
    #[must_use]
    pub fn saved(counts: &[(RuleId, Count)]) -> Self {
        Self(counts.iter().copied().collect())
    }

    /// Adds differences. Beyond [`MAX_COUNTED`] rules, more than there can be, further rules are
    /// not counted.
    pub fn add(&mut self, uses: &[RuleUse], now: Duration) {
        for uses in uses {
            if self.0.len() >= MAX_COUNTED && !self.0.contains_key(&uses.rule) {
                continue;
            }
            let count = self.0.entry(uses.rule).or_default();
            count.packets = count.packets.saturating_add(uses.packets);
            count.bytes = count.bytes.saturating_add(uses.bytes);
            let last = now.saturating_sub(Duration::from_millis(uses.idle_ms.into()));
            count.last = count.last.max(last);
        }
    }

    /// Removes the counters of rules that are in none of the lists, if there can be any.
    pub fn forget_others(&mut self, access: &AccessModel) {
        let rules = access.lists.iter().map(|list| list.rules.len()).sum();
        if self.0.len() > rules {
            let known: BTreeSet<_> = rules_of(&access.lists).map(|(id, ..)| id).collect();
            self.0.retain(|rule, _| known.contains(rule));
        }
    }

    /// Returns the counters of the rules that were hit last, for the state file.
    #[must_use]
    pub fn latest(&self) -> Vec<(RuleId, Count)> {
        let mut all: Vec<_> = self.0.iter().map(|(rule, count)| (*rule, *count)).collect();
        if all.len() > SAVED {
            all.select_nth_unstable_by_key(SAVED, |(_, count)| Reverse(count.last));
            all.truncate(SAVED);
        }
        all
    }

    fn of(&self, rule: RuleId) -> Count {
        self.0.get(&rule).copied().unwrap_or_default()
    }
}

/// Returns all rules of some lists, with their lists.
fn rules_of<'a>(
    lists: impl IntoIterator<Item = &'a AccessListSpec>,
) -> impl Iterator<Item = (RuleId, &'a AccessListSpec, &'a str)> {
    lists.into_iter().flat_map(|list| {
        let rules = list.rules.iter();
        rules.map(move |rule| (RuleId::of(&list.name, &rule.name), list, &*rule.name))
    })
}

/// A snapshot of the counters, with the access lists.
#[derive(Clone, Debug, Default)]
pub struct CountSnapshot {
    /// The access lists.
    pub access: Arc<AccessModel>,
    /// Counters by rule, shared with the engine: they are long where many rules are used.
    pub counts: Arc<Counts>,
    /// Time of the snapshot.
    pub now: Duration,
}

impl CountSnapshot {
    /// Returns the document for clients.
    ///
    /// # Errors
    /// 404 when there is no such list.
    pub fn document(&self, filter: &CountsFilter) -> Result<AccessCounts, Problem> {
        let lists: Vec<_> = match &filter.list {
            Some(name) => vec![self.access.list(name).ok_or_else(|| no_such_list(name))?],
            None => self.access.lists.iter().collect(),
        };
        let Some(limit) = filter.limit else {
            let lists = lists.into_iter().map(|list| self.list(list, |_| true));
            return Ok(AccessCounts {
                lists: lists.collect(),
            });
        };
        let busiest = self.busiest_of(lists.iter().copied(), limit);
        let busiest: BTreeSet<_> = busiest.into_iter().map(|(id, ..)| id).collect();
        let lists = lists.into_iter();
        let lists = lists.map(|list| self.list(list, |id| busiest.contains(&id)));
        Ok(AccessCounts {
            lists: lists.filter(|list| !list.rules.is_empty()).collect(),
        })
    }

    fn list(&self, list: &AccessListSpec, has: impl Fn(RuleId) -> bool) -> ListCounts {
        let rules = rules_of([list]).filter(|(id, ..)| has(*id));
        let rules = rules.map(|(id, _, name)| self.rule(name, self.counts.of(id)));
        ListCounts {
            name: list.name.clone(),
            direction: list.direction,
            segments: list.segments.clone(),
            groups: list.groups.clone(),
            ports: list.ports.clone(),
            rules: rules.collect(),
        }
    }

    fn rule(&self, name: &str, count: Count) -> RuleCounts {
        let ago = self.now.saturating_sub(count.last);
        let ms = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        RuleCounts {
            name: name.to_owned(),
            packets: count.packets,
            bytes: count.bytes,
            last_hit_ms_ago: (count.packets > 0).then_some(ms),
        }
    }

    fn busiest_of<'a>(
        &'a self,
        lists: impl IntoIterator<Item = &'a AccessListSpec>,
        limit: usize,
    ) -> Vec<(RuleId, &'a str, &'a str, Count)> {
        let counted = rules_of(lists).map(|(id, list, rule)| (id, &*list.name, rule));
        let counted = counted.map(|(id, list, rule)| (id, list, rule, self.counts.of(id)));
        let mut all: Vec<_> = counted.filter(|(.., count)| count.packets > 0).collect();
        all.sort_by_key(|(.., count)| Reverse(count.packets));
        all.truncate(limit);
        all
    }

    /// Returns list, rule and counters of the rules with the most packets, sorted by name.
    pub fn busiest(&self, limit: usize) -> impl Iterator<Item = (&str, &str, Count)> {
        let all = self.busiest_of(&self.access.lists, limit).into_iter();
        let by_name: BTreeMap<_, _> = all.map(|(_, list, rule, c)| ((list, rule), c)).collect();
        by_name
            .into_iter()
            .map(|((list, rule), count)| (list, rule, count))
    }
}

fn no_such_list(name: &str) -> Problem {
    Problem::no_such("access list", name).with_field("list")
}

#[cfg(test)]
mod tests {
    use api::v1::{Direction, RuleSpec};

    use super::*;

    fn list(name: &str, rules: &[&str]) -> AccessListSpec {
        let rule = |name: &&str| RuleSpec {
            name: (*name).to_owned(),
            ..RuleSpec::default()
        };
        AccessListSpec {
            name: name.to_owned(),
            direction: Direction::FromGuest,
            segments: Vec::new(),
            groups: Vec::new(),
            ports: Vec::new(),
            rules: rules.iter().map(rule).collect(),
        }
    }

    fn uses(list: &str, rule: &str, packets: u64, idle_ms: u32) -> RuleUse {
        RuleUse {
            rule: RuleId::of(list, rule),
            packets,
            bytes: 100 * packets,
            idle_ms,
        }
    }

    fn counted() -> CountSnapshot {
        let model = AccessModel {
            lists: vec![list("in", &["a", "b", "c"]), list("out", &["a", "b"])],
            ..AccessModel::default()
        };
        let now = Duration::from_secs(100);
        let mut counts = Counts::default();
        counts.add(&[uses("in", "a", 3, 0), uses("in", "b", 5, 100)], now);
        counts.add(&[uses("in", "a", 4, 2000), uses("out", "b", 6, 70)], now);
        CountSnapshot {
            access: Arc::new(model),
            counts: Arc::new(counts),
            now,
        }
    }

    fn rows(document: &AccessCounts) -> Vec<(&str, &str, u64, Option<u64>)> {
        let lists = document.lists.iter();
        let rules = lists.flat_map(|list| list.rules.iter().map(move |rule| (list, rule)));
        rules
            .map(|(list, rule)| (&*list.name, &*rule.name, rule.packets, rule.last_hit_ms_ago))
            .collect()
    }

    #[test]
    fn differences_are_added_and_the_last_hit_is_the_latest() {
        let document = counted().document(&CountsFilter::default()).unwrap();
        let expected = [
            ("in", "a", 7, Some(0)),
            ("in", "b", 5, Some(100)),
            ("in", "c", 0, None),
            ("out", "a", 0, None),
            ("out", "b", 6, Some(70)),
        ];
        assert_eq!(rows(&document), expected);
        assert_eq!(document.lists[0].rules[0].bytes, 700);
    }

    #[test]
    fn one_list_and_the_busiest_can_be_asked_for() {
        let filter = |list: Option<&str>, limit| CountsFilter {
            list: list.map(str::to_owned),
            limit,
        };
        let counted = counted();
        let document = counted.document(&filter(Some("out"), None)).unwrap();
        assert_eq!(document.lists.len(), 1);
        let document = counted.document(&filter(None, Some(2))).unwrap();
        let expected = [("in", "a", 7, Some(0)), ("out", "b", 6, Some(70))];
        assert_eq!(rows(&document), expected);
        let problem = counted.document(&filter(Some("none"), None)).unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (404, Some("list"))
        );
    }

    #[test]
    fn rules_that_are_gone_are_forgotten_and_the_latest_are_saved() {
        let all = counted();
        let mut model = (*all.access).clone();
        let mut left = (*all.counts).clone();
        left.forget_others(&model);
        assert_eq!(left, *all.counts);
        model.lists.truncate(1);
        left.forget_others(&model);
        assert_eq!(left, *all.counts, "there may be as many");
        model.lists[0].rules.remove("b");
        left.forget_others(&model);
        assert_eq!(left.0.len(), 1);
        assert_eq!(Counts::saved(&left.latest()), left);
        let many: Vec<_> = (0..10_000)
            .map(|n| uses("in", &n.to_string(), 1, n))
            .collect();
        let mut counts = Counts::default();
        counts.add(&many, all.now);
        let latest = Counts::saved(&counts.latest());
        assert_eq!(latest.0.len(), SAVED);
        assert!(latest.0.contains_key(&RuleId::of("in", "4095")));
        assert!(!latest.0.contains_key(&RuleId::of("in", "4096")));
    }

    #[test]
    fn there_is_a_bound() {
        let mut counts = Counts::default();
        let many = (0..MAX_COUNTED as u64 + 5).map(|n| RuleUse {
            rule: RuleId(n),
            packets: u64::MAX,
            bytes: 1,
            idle_ms: u32::MAX,
        });
        let many: Vec<_> = many.collect();
        counts.add(&many, Duration::ZERO);
        counts.add(&many, Duration::ZERO);
        assert_eq!(counts.0.len(), MAX_COUNTED);
    }
}
