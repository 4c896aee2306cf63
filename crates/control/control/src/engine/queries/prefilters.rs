//! Prefilters: their states, their entries, and counters with the frames that end at the wire.

use std::collections::HashMap;
use std::time::Duration;

use api::v1::{PrefilterDocument, PrefilterEntry, PrefilterStatus, Problem};
use ipc::driving::DriverState;
use offload::{Counts, Entry};
use policy::acl::RuleId;
use port::counters::PortCounts;
use port::{DropReason, PortId};

use crate::engine::Engine;
use crate::prefilter::About;
use crate::trace::Names;
use crate::trace::flow::matches;

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
    let saved = &engine.store.saved;
    let numbers = &saved.numbers;
    let missing = || Problem::no_such("port", name);
    let port = *numbers.ports.get(name).ok_or_else(missing)?;
    let Some(Ok(prefilter)) = engine.forwarding.prefilters.of(port) else {
        return Ok(PrefilterDocument {
            port: name.to_owned(),
            entries: Vec::new(),
        });
    };
    let names = Names::new(&numbers.ports, &numbers.segments, &numbers.classes);
    let rules: HashMap<RuleId, String> = saved
        .desired
        .access
        .lists
        .iter()
        .flat_map(|list| list.rules.iter().map(move |rule| (list, rule)))
        .map(|(list, rule)| {
            let id = RuleId::of(&list.name, &rule.name);
            (id, format!("{}/{}", list.name, rule.name))
        })
        .collect();
    let ms = |since: Duration| {
        let ms = engine.now().saturating_sub(since).as_millis();
        u64::try_from(ms).unwrap_or(u64::MAX)
    };
    let entry = |(entry, counts): (&Entry<About>, Counts)| PrefilterEntry {
        matches: matches(&entry.key, &entry.mask, &names),
        rules: entry
            .about
            .rules
            .iter()
            .filter_map(|rule| rules.get(rule).cloned())
            .collect(),
        frames: counts.frames,
        bytes: counts.bytes,
        age_ms: ms(entry.added),
        idle_ms: ms(entry.used),
    };
    let mut entries: Vec<_> = prefilter.entries().map(entry).collect();
    entries.sort_by(|a, b| (b.frames, &a.matches).cmp(&(a.frames, &b.matches)));
    Ok(PrefilterDocument {
        port: name.to_owned(),
        entries,
    })
}
