//! The prefilter of one uplink: which flows its table has.
//!
//! ```text
//! the switch denies 1000 frames a second       the table samples frames that meet no entry
//! every 100 ms                                 samples are decided; of those that are denied the
//!                                              most frequent become entries
//! every second                                 entries without frames for 10 s go
//! no entries, fewer than 1000 frames a second  nothing more is done
//! ```
//!
//! An entry covers only frames that the policy denies ([`policy::denied`]), whatever the samples
//! are: these come from the wire, and choose nothing but what is looked at. One of a tracked
//! segment leaves those alone that may be of a known connection, which the switch says.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipc::rules::RuleUse;
use offload::layout::MASKS;
use offload::{Action, Counts, Entry, Memory, NoTableError, Slot, Table, masks};
use policy::acl::RuleId;
use policy::{Denial, Lookup, NamedMacs, Program, denied};
use port::PortId;
use wire::{FlowKey, FlowMask, MacAddr};

/// Interval of changes while frames are denied.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
/// Denied frames a second that make a port sample.
const BUSY: u64 = 1000;
/// Denial frames a second that make an entry of each sample; below, of two that agree.
const FLOOD: u64 = 10_000;
/// Samples that are decided in one interval.
const SAMPLES: usize = 256;
/// Time without frames after which an entry goes.
const IDLE: Duration = Duration::from_secs(10);
/// Time that hits count without a renewal: how long entries outlive a control that hangs.
const LEASE: Duration = Duration::from_secs(2);
/// Interval of renewals.
const RENEWAL: Duration = Duration::from_millis(500);
/// Interval of looks at the entries.
const SWEEP: Duration = Duration::from_secs(1);
/// Time without frames after which all entries of a mask make room for another mask.
const MASK_IDLE: Duration = Duration::from_secs(1);

/// The policy that decides about samples and entries.
pub(crate) struct Policy<'a> {
    pub(crate) program: &'a Program,
    pub(crate) fdb: &'a dyn Lookup,
    pub(crate) named: NamedMacs,
}

/// Data of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct About {
    /// The sample that it was made for.
    pub(crate) sample: FlowKey,
    /// The rules that deny it.
    pub(crate) rules: Vec<RuleId>,
    /// Frames that these rules were counted for.
    counted: Counts,
}

/// Changes of a table, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Changes {
    /// Entries that were added.
    pub(crate) added: u64,
    /// Entries that went without frames, or for others.
    pub(crate) aged: u64,
    /// Entries that the policy no longer denies, or another rule does.
    pub(crate) outdated: u64,
    /// Samples that were decided.
    pub(crate) samples: u64,
}

/// Beginning or end of a time with entries, for an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// There are entries, of these rules.
    Began(BTreeSet<RuleId>),
    /// There are none any more. Frames of these rules have met some, in this number.
    Ended(BTreeSet<RuleId>, u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Prefilter<M> {
    port: PortId,
    table: Table<M, About>,
    /// The switch's count of denied frames, and when it was read.
    denied: Option<(u64, Duration)>,
    is_active: bool,
    renewed: Option<Duration>,
    swept: Duration,
    uses: BTreeMap<RuleId, Counts>,
    /// While there are entries: the rules of all since the first, and the frames before it.
    began: Option<(BTreeSet<RuleId>, u64)>,
    pub(crate) changes: Changes,
}

impl<M: Memory> Prefilter<M> {
    /// Takes over the table of a port, and empties it. `seed` is random.
    ///
    /// # Errors
    /// It is none for this build.
    pub(crate) fn new(port: PortId, memory: M, seed: u64) -> Result<Self, NoTableError> {
        Ok(Self {
            port,
            table: Table::adopt(memory, seed)?,
            denied: None,
            is_active: false,
            renewed: None,
            swept: Duration::ZERO,
            uses: BTreeMap::new(),
            began: None,
            changes: Changes::default(),
        })
    }

    /// Sets the maximum number of entries.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.table.set_limit(limit);
    }

    /// Returns whether [`Prefilter::tick`] is due each [`INTERVAL`].
    pub(crate) const fn is_active(&self) -> bool {
        self.is_active
    }

    /// Returns the frames that have met entries, of all controls since the port exists.
    pub(crate) fn total(&self) -> Counts {
        self.table.total()
    }

    /// Returns the entries with their counters.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Entry<About>, Counts)> {
        let entries = self.table.entries();
        entries.map(|(slot, entry)| (entry, self.table.counts(slot)))
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Looks once a second whether the switch denies many frames. `denied`: their number so far.
    pub(crate) fn look(&mut self, now: Duration, denied: u64) {
        if !self.is_active && self.rate(now, denied) >= BUSY {
            self.is_active = true;
            self.table.sample(0);
        }
    }

    /// Changes the table: the work of each [`INTERVAL`] while it is active.
    pub(crate) fn tick(&mut self, now: Duration, denied: u64, policy: &Policy<'_>) {
        let rate = self.rate(now, denied);
        let (keys, missed) = self.table.take_samples();
        self.learn(now, &keys, rate, policy);
        if now.saturating_sub(self.swept) >= SWEEP {
            self.swept = now;
            self.note_uses();
            let aged = self.table.sweep(now, IDLE);
            self.changes.aged += aged.len() as u64;
            self.consolidate(now, policy);
        }
        let is_busy = rate >= BUSY;
        if is_busy {
            // The ring of one CPU then holds those of an interval.
            self.table
                .sample((missed / SAMPLES as u64).checked_ilog2().unwrap_or(0));
        }
        if self.table.is_empty() {
            self.renewed = None;
            self.table.set_lease(0);
            self.is_active = is_busy;
        } else if self
            .renewed
            .is_none_or(|at| now.saturating_sub(at) >= RENEWAL)
        {
            self.renewed = Some(now);
            let until = now.saturating_add(LEASE).as_nanos();
            self.table
                .set_lease(u64::try_from(until).unwrap_or(u64::MAX));
        }
    }

    /// Removes the entries that a policy does not deny for the same rules. `only`: only those that
    /// may concern a station of this address. No frame that arrives later meets one of them.
    pub(crate) fn revalidate(&mut self, now: Duration, policy: &Policy<'_>, only: Option<MacAddr>) {
        if self.table.is_empty() {
            return;
        }
        self.note_uses();
        let named = FlowMask::NONE.with_dmac();
        let is_denied = |entry: &Entry<About>| {
            if only.is_some_and(|mac| !entry.mask.covers(&named) || entry.key.dmac() != mac) {
                return true;
            }
            let found = denied(
                policy.program,
                policy.fdb,
                &entry.about.sample,
                policy.named,
            );
            found.is_some_and(|found| {
                entry.mask.covers(&found.mask)
                    && entry.action == action_of(&found)
                    && entry.about.rules == found.rules
            })
        };
        let outdated = self.table.retain(now, is_denied);
        self.changes.outdated += outdated.len() as u64;
        self.table.settle();
    }

    /// Removes all entries, and looks for none until the switch denies many frames again.
    pub(crate) fn stop(&mut self, now: Duration) {
        self.table.set_lease(0);
        self.table.take_samples();
        self.note_uses();
        let all = self.table.retain(now, |_| false);
        self.changes.aged += all.len() as u64;
        self.table.settle();
        (self.is_active, self.renewed, self.denied) = (false, None, None);
    }

    /// Returns whether there are entries now and were none at the last call, or the reverse.
    pub(crate) fn take_turn(&mut self) -> Option<Turn> {
        let rules = self.table.entries().flat_map(|(_, of)| &of.about.rules);
        let rules: BTreeSet<_> = rules.copied().collect();
        let frames = self.total().frames;
        match &mut self.began {
            None if self.table.is_empty() => None,
            None => {
                self.began = Some((rules.clone(), frames));
                Some(Turn::Began(rules))
            }
            Some((all, before)) => {
                all.extend(rules);
                let ended = frames.saturating_sub(*before);
                let (all, _) = self.began.take_if(|_| self.table.is_empty())?;
                Some(Turn::Ended(all, ended))
            }
        }
    }

    /// Returns the entry that a frame meets.
    pub(crate) fn entry_of(&self, key: &FlowKey) -> Option<(&Entry<About>, Counts)> {
        let mut entries = self.entries();
        entries.find(|(of, _)| key.masked(&of.mask) == of.key.masked(&of.mask))
    }

    /// Takes the frames that rules have denied here and were not counted for.
    pub(crate) fn take_uses(&mut self) -> Vec<RuleUse> {
        let uses = std::mem::take(&mut self.uses).into_iter();
        uses.map(|(rule, counts)| RuleUse {
            rule,
            packets: counts.frames,
            bytes: counts.bytes,
            idle_ms: 0,
        })
        .collect()
    }

    /// Returns the denied frames a second since the last call; at first 0.
    fn rate(&mut self, now: Duration, denied: u64) -> u64 {
        let before = self.denied.replace((denied, now));
        let Some((before, at)) = before else { return 0 };
        let passed = now.saturating_sub(at).as_millis().max(1);
        let frames = u128::from(denied.saturating_sub(before)) * 1000 / passed;
        u64::try_from(frames).unwrap_or(u64::MAX)
    }

    /// Adds entries for the samples that are denied.
    fn learn(&mut self, now: Duration, keys: &[FlowKey], rate: u64, policy: &Policy<'_>) {
        let decided = keys.iter().take(SAMPLES).filter_map(|key| {
            let sample = key.with_in_port(self.port.0);
            let found = denied(policy.program, policy.fdb, &sample, policy.named)?;
            Some((sample, found))
        });
        let decided: Vec<_> = decided.collect();
        self.changes.samples += decided.len() as u64;
        let samples: Vec<_> = decided.iter().map(|(key, of)| (*key, of.mask)).collect();
        let mut known: Vec<FlowMask> = self.table.masks().copied().collect();
        let chosen = masks::choose(&samples, known.iter().copied(), MASKS);
        if known.len() == MASKS && !chosen.is_empty() {
            self.drop_idle_mask(now);
            known = self.table.masks().copied().collect();
        }
        known.extend(chosen.into_iter().take(MASKS - known.len()));
        let mut groups: BTreeMap<_, (usize, FlowMask, FlowKey, Denial)> = BTreeMap::new();
        for (sample, found) in decided {
            let Some(mask) = masks::best(&known, &found.mask) else {
                continue;
            };
            let key = (*mask.words(), *sample.masked(mask).words());
            let group = groups.entry(key);
            group.or_insert((0, *mask, sample, found)).0 += 1;
        }
        let enough = if rate >= FLOOD { 1 } else { 2 };
        groups.retain(|_, (samples, ..)| *samples >= enough);
        self.note_uses();
        let room = self.table.make_room(groups.len(), now);
        self.changes.aged += room.len() as u64;
        for (_, mask, sample, found) in groups.into_values() {
            self.add(now, &mask, sample, found);
        }
    }

    /// Chooses masks anew, by the entries, if far fewer entries do then. The first samples of a
    /// flood may have been of few flows. What an entry was made for is decided anew: an entry stays
    /// under a policy that needs more of its bits.
    fn consolidate(&mut self, now: Duration, policy: &Policy<'_>) {
        let all: Vec<About> = self
            .table
            .entries()
            .map(|(_, of)| of.about.clone())
            .collect();
        let decide = |about: &About| {
            let found = denied(policy.program, policy.fdb, &about.sample, policy.named)?;
            Some((about.sample, found))
        };
        let some: Vec<_> = all.iter().take(SAMPLES).filter_map(decide).collect();
        let samples: Vec<_> = some.iter().map(|(key, of)| (*key, of.mask)).collect();
        let chosen = masks::choose(&samples, [], MASKS);
        let wide_key = |(sample, found): &(FlowKey, Denial)| {
            let mask = masks::best(&chosen, &found.mask)?;
            Some((*mask.words(), *sample.masked(mask).words()))
        };
        // Of few it costs little to know whether the rest is worth it.
        let of_some: BTreeSet<_> = some.iter().filter_map(wide_key).collect();
        if of_some.len() * 4 > some.len() * 3 {
            return;
        }
        let rest = all.iter().skip(SAMPLES).filter_map(decide);
        let mut wide = BTreeMap::new();
        for decided in some.into_iter().chain(rest) {
            let Some(key) = wide_key(&decided) else {
                return;
            };
            wide.entry(key).or_insert(decided);
        }
        self.note_uses();
        let stays = |of: &Entry<About>| wide.remove(&(*of.mask.words(), *of.key.words())).is_some();
        let narrow = self.table.retain(now, stays);
        self.changes.aged += narrow.len() as u64;
        for ((mask, _), (sample, found)) in wide {
            let mask = FlowMask::from_words(mask);
            self.add(now, &mask, sample, found);
        }
    }

    /// Adds an entry with a mask that has all bits that decide about a sample.
    fn add(&mut self, now: Duration, mask: &FlowMask, sample: FlowKey, found: Denial) {
        let action = action_of(&found);
        let about = About {
            sample,
            rules: found.rules,
            counted: Counts::default(),
        };
        let of = (&sample, mask);
        if self.table.add_with(now, of, action, about).is_ok() {
            self.changes.added += 1;
        }
    }

    /// Removes the entries of the mask that was of no use for longest, if any was for some time.
    fn drop_idle_mask(&mut self, now: Duration) {
        let mut used: BTreeMap<[u64; 8], Duration> = BTreeMap::new();
        for (_, entry) in self.table.entries() {
            let last = used.entry(*entry.mask.words()).or_default();
            *last = entry.used.max(*last);
        }
        let oldest = used.into_iter().min_by_key(|(_, last)| *last);
        let is_idle = |last| now.saturating_sub(last) >= MASK_IDLE;
        if let Some((mask, _)) = oldest.filter(|(_, last)| is_idle(*last)) {
            let dropped = self.table.retain(now, |entry| *entry.mask.words() != mask);
            self.changes.aged += dropped.len() as u64;
        }
    }

    /// Notes the frames that entries have met since they were counted for their rules.
    fn note_uses(&mut self) {
        let slots: Vec<Slot> = self.table.entries().map(|(slot, _)| slot).collect();
        for slot in slots {
            let counts = self.table.counts(slot);
            let Some(about) = self.table.about_mut(slot) else {
                continue;
            };
            let new = counts.since(about.counted);
            if new == Counts::default() {
                continue;
            }
            about.counted = counts;
            for rule in &about.rules {
                let of_rule = self.uses.entry(*rule).or_default();
                *of_rule = of_rule.plus(new);
            }
        }
    }
}

/// Returns the action of entries for a denial.
const fn action_of(denial: &Denial) -> Action {
    match denial.is_of_new {
        true => Action::DropNew,
        false => Action::Drop,
    }
}
