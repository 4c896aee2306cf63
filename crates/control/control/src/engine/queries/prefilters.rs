//! Prefilters: their states, their entries, and counters with the frames that end at the wire.

use std::collections::HashMap;
use std::time::Duration;

use api::v1::{
    EventKind, PrefilterChange, PrefilterDocument, PrefilterEntry, PrefilterStatus, Problem,
};
use ipc::driving::DriverState;
use offload::{Counts, Entry};
use policy::acl::RuleId;
use port::counters::PortCounts;
use port::{DropReason, PortId};
use wire::FlowKey;

use crate::engine::Engine;
use crate::prefilter::{About, Turn};
use crate::trace::Names;
use crate::trace::flow::matches;

/// Maximum number of rules that an event names.
const RULES: usize = 8;

/// Returns the counters of a port: of the switch, and of its prefilter.
pub(in crate::engine) fn counts_of(engine: &Engine, port: PortId) -> PortCounts {
    let mut counts = engine.counters.read(port);
    let ended = engine.forwarding.prefilters.total(port);
    counts.from_guest.packets += ended.frames;
    counts.from_guest.bytes += ended.bytes;
    if let Some(denied) = counts.drops.get_mut(DropReason::AclDenied as usize) {
        *denied += ended.frames;
    }
    counts
}

/// Names in documents and events.
struct Words {
    names: Names,
    rules: HashMap<RuleId, String>,
    now: Duration,
}

impl Words {
    fn new(engine: &Engine) -> Self {
        let saved = &engine.store.saved;
        let lists = saved.desired.access.lists.iter();
        let rules = lists.flat_map(|list| list.rules.iter().map(move |rule| (list, rule)));
        let rules = rules.map(|(list, rule)| {
            let id = RuleId::of(&list.name, &rule.name);
            (id, format!("{}/{}", list.name, rule.name))
        });
        let numbers = &saved.numbers;
        Self {
            names: Names::new(&numbers.ports, &numbers.segments, &numbers.classes),
            rules: rules.collect(),
            now: engine.now(),
        }
    }

    fn rules<'r>(&self, rules: impl IntoIterator<Item = &'r RuleId>) -> Vec<String> {
        let named = rules.into_iter().filter_map(|rule| self.rules.get(rule));
        named.cloned().collect()
    }

    fn entry(&self, (entry, counts): (&Entry<About>, Counts)) -> PrefilterEntry {
        let ms = |since: Duration| {
            let ms = self.now.saturating_sub(since).as_millis();
            u64::try_from(ms).unwrap_or(u64::MAX)
        };
        PrefilterEntry {
            matches: matches(&entry.key, &entry.mask, &self.names),
            rules: self.rules(&entry.about.rules),
            frames: counts.frames,
            bytes: counts.bytes,
            age_ms: ms(entry.added),
            idle_ms: ms(entry.used),
        }
    }
}

/// Returns the entry that a plain frame of a port meets.
pub(in crate::engine) fn entry_of(
    engine: &Engine,
    port: PortId,
    key: &FlowKey,
) -> Option<PrefilterEntry> {
    let prefilter = engine.forwarding.prefilters.of(port)?.ok()?;
    let found = prefilter.entry_of(key)?;
    Some(Words::new(engine).entry(found))
}

/// Sends an event for each prefilter whose table has entries now and had none, or the reverse.
pub(in crate::engine) fn report_turns(engine: &mut Engine) {
    let turns = engine.forwarding.prefilters.take_turns();
    for (port, turn) in turns {
        let name = engine.ports.name(port).to_owned();
        let (state, rules, frames) = match turn {
            Turn::Began(rules) => (PrefilterChange::Began, rules, None),
            Turn::Ended(rules, frames) => (PrefilterChange::Ended, rules, Some(frames)),
        };
        let mut rules = Words::new(engine).rules(&rules);
        rules.truncate(RULES);
        let what = EventKind::Prefilter {
            port: name,
            state,
            rules,
            frames,
        };
        let now = engine.now();
        engine.events.limited(now, port, what);
    }
}

/// Returns the state of a port's prefilter, with what the supervisor says of it; `None` if
/// none is desired.
pub(in crate::engine) fn status(
    engine: &Engine,
    id: Option<PortId>,
    driver: Option<&DriverState>,
) -> Option<PrefilterStatus> {
    let attached = driver?.prefilter.as_ref()?;
    let own = id.and_then(|id| engine.forwarding.prefilters.of(id));
    let mut status = match attached {
        Ok(back_end) => PrefilterStatus {
            back_end: Some(back_end.as_str().to_owned()),
            ..PrefilterStatus::default()
        },
        Err(reason) => PrefilterStatus {
            reason: Some(reason.clone()),
            ..PrefilterStatus::default()
        },
    };
    match own {
        Some(Ok(prefilter)) => {
            let Counts { frames, bytes } = prefilter.total();
            status.entries = prefilter.len() as u64;
            (status.frames, status.bytes) = (frames, bytes);
            let changes = prefilter.changes;
            (status.samples, status.added) = (changes.samples, changes.added);
            (status.aged, status.outdated) = (changes.aged, changes.outdated);
        }
        Some(Err(reason)) => {
            status.back_end = None;
            status.reason.get_or_insert_with(|| reason.to_owned());
        }
        None => {}
    }
    Some(status)
}

/// Returns the entries of a port's prefilter.
///
/// # Errors
/// There is no such port.
pub(in crate::engine) fn document(
    engine: &Engine,
    name: &str,
) -> Result<PrefilterDocument, Problem> {
    let numbers = &engine.store.saved.numbers;
    let missing = || Problem::no_such("port", name);
    let port = *numbers.ports.get(name).ok_or_else(missing)?;
    let Some(Ok(prefilter)) = engine.forwarding.prefilters.of(port) else {
        return Ok(PrefilterDocument {
            port: name.to_owned(),
            entries: Vec::new(),
        });
    };
    let words = Words::new(engine);
    let mut entries: Vec<_> = prefilter.entries().map(|of| words.entry(of)).collect();
    entries.sort_by(|a, b| (b.frames, &a.matches).cmp(&(a.frames, &b.matches)));
    Ok(PrefilterDocument {
        port: name.to_owned(),
        entries,
    })
}
