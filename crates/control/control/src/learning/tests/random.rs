//! Random histories.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Learn(SegmentId, MacAddr, PortId),
    Refresh(SegmentId, MacAddr, PortId),
    Pin(SegmentId, MacAddr, PortId),
    Unpin(SegmentId, MacAddr),
    Expire,
    Settle,
    /// The address belongs to A and B, and no other to any port.
    Share(SegmentId, MacAddr),
    ForgetPort(PortId),
    PortDown(PortId),
}

fn step() -> impl Strategy<Value = Step> {
    let segment = || (0..2u16).prop_map(SegmentId);
    let port = || (1..4u32).prop_map(PortId);
    let triple = || (segment(), (1..6u8).prop_map(mac), port());
    prop_oneof![
        12 => triple().prop_map(|(s, m, p)| Step::Learn(s, m, p)),
        4 => triple().prop_map(|(s, m, p)| Step::Refresh(s, m, p)),
        1 => triple().prop_map(|(s, m, p)| Step::Pin(s, m, p)),
        1 => triple().prop_map(|(s, m, _)| Step::Unpin(s, m)),
        2 => Just(Step::Expire),
        2 => Just(Step::Settle),
        1 => (segment(), (1..6u8).prop_map(mac)).prop_map(|(s, m)| Step::Share(s, m)),
        1 => port().prop_map(Step::ForgetPort),
        1 => port().prop_map(Step::PortDown),
    ]
}

/// Steps and the milliseconds before each.
fn history(pauses: std::ops::Range<u64>) -> impl Strategy<Value = Vec<(u64, Step)>> {
    prop::collection::vec((pauses, step()), 1..120)
}

fn limits() -> Limits {
    Limits {
        age: secs(10),
        per_port: 3,
        total: 6,
        moves: Allowance::new(2, secs(1)),
        shared_moves: Allowance::new(4, millis(100)),
        port_moves: Allowance::new(6, millis(300)),
        silence: secs(1),
        shared_silence: millis(100),
    }
}

fn apply(fdb: &mut Fdb, now: Duration, step: &Step) -> Vec<Effect> {
    match *step {
        Step::Learn(segment, mac, port) => {
            let preview = fdb.preview(now, segment, mac, port);
            let effects = fdb.learn(now, segment, mac, port);
            assert_eq!(preview, preview_of(&effects), "{effects:?}");
            effects
        }
        Step::Refresh(segment, mac, port) => {
            fdb.refresh(now, segment, mac, port);
            Vec::new()
        }
        Step::Pin(segment, mac, port) => fdb.pin(segment, mac, port),
        Step::Unpin(segment, mac) => fdb.unpin(now, segment, mac),
        Step::Expire => fdb.expire(now),
        Step::Settle => fdb.settle(now),
        Step::Share(segment, mac) => fdb.own(now, &[((segment, mac), vec![A, B])].into()),
        Step::ForgetPort(port) => fdb.forget_port(port),
        Step::PortDown(port) => fdb.port_down(port),
    }
}

/// Returns the result of learning that these effects of a frame show.
fn preview_of(effects: &[Effect]) -> LearnPreview {
    let said = effects.iter().find_map(|effect| match *effect {
        Effect::Learned { .. } => Some(LearnPreview::New),
        Effect::Moved { from, .. } => Some(LearnPreview::Moves { from }),
        Effect::Refused { why, .. } => Some(LearnPreview::Refused(why)),
        _ => None,
    });
    said.unwrap_or(LearnPreview::Known)
}

/// A model of the database without damping: a list with linear search.
#[derive(Default)]
struct Naive(Vec<Station>, Vec<Duration>);

impl Naive {
    fn find(&self, segment: SegmentId, mac: MacAddr) -> Option<usize> {
        self.0
            .iter()
            .position(|station| station.segment == segment && station.mac == mac)
    }

    fn keep(&mut self, keep: impl Fn(&Station, Duration) -> bool) {
        let all = std::mem::take(&mut self.0)
            .into_iter()
            .zip(std::mem::take(&mut self.1));
        (self.0, self.1) = all.filter(|(station, seen)| keep(station, *seen)).unzip();
    }

    fn add(&mut self, now: Duration, segment: SegmentId, mac: MacAddr, port: PortId, pinned: bool) {
        self.0.push(Station {
            segment,
            mac,
            port,
            age: Duration::ZERO,
            pinned,
        });
        self.1.push(now);
    }

    fn apply(&mut self, now: Duration, step: &Step, limits: &Limits) {
        // Stale entries have no effect, so the model removes them at once.
        self.keep(|station, seen| station.pinned || now - seen < limits.age);
        match *step {
            Step::Learn(segment, mac, port) => self.learn(now, segment, mac, port, limits),
            Step::Refresh(segment, mac, port) => {
                let at = self
                    .find(segment, mac)
                    .filter(|at| self.0[*at].port == port);
                at.into_iter().for_each(|at| self.1[at] = now);
            }
            Step::Pin(segment, mac, port) => {
                self.keep(|station, _| station.segment != segment || station.mac != mac);
                self.add(now, segment, mac, port, true);
            }
            Step::Unpin(segment, mac) => {
                let at = self.find(segment, mac);
                if let Some(at) = at.filter(|at| self.0[*at].pinned) {
                    let port = self.0[at].port;
                    self.keep(|station, _| station.segment != segment || station.mac != mac);
                    self.learn(now, segment, mac, port, limits);
                }
            }
            Step::Expire | Step::Settle | Step::Share(..) | Step::PortDown(_) => {}
            Step::ForgetPort(port) => self.keep(|station, _| station.port != port),
        }
    }

    fn learn(
        &mut self,
        now: Duration,
        segment: SegmentId,
        mac: MacAddr,
        port: PortId,
        limits: &Limits,
    ) {
        let learned = |at: Option<PortId>| {
            let own =
                |station: &&Station| !station.pinned && at.is_none_or(|at| station.port == at);
            self.0.iter().filter(own).count()
        };
        match self.find(segment, mac) {
            Some(at) if self.0[at].pinned => {}
            Some(at) => (self.0[at].port, self.1[at]) = (port, now),
            None if learned(Some(port)) >= limits.per_port || learned(None) >= limits.total => {}
            None => self.add(now, segment, mac, port, false),
        }
    }

    fn list(&self, now: Duration) -> Vec<Station> {
        let age = |station: &Station, seen| if station.pinned { secs(0) } else { now - seen };
        let aged = |(station, seen): (&Station, &Duration)| Station {
            age: age(station, *seen),
            ..*station
        };
        let mut all: Vec<_> = self.0.iter().zip(&self.1).map(aged).collect();
        all.sort_unstable();
        all
    }
}

fn config() -> ProptestConfig {
    ProptestConfig::with_cases(400)
}

proptest! {
    #![proptest_config(config())]

    /// While no moves are spent, the database is a table with ageing and limits.
    #[test]
    fn agrees_with_a_naive_table(history in history(250..3000)) {
        let always = Allowance::new(2, millis(1));
        let limits = Limits { moves: always, port_moves: always, ..limits() };
        let (mut fdb, mut naive, mut now) = (Fdb::new(limits), Naive::default(), secs(0));
        for (pause, step) in history {
            now += millis(pause);
            if matches!(step, Step::Settle | Step::Share(..) | Step::PortDown(_)) {
                continue;
            }
            // The database counts stale entries until `expire`; the model does not.
            fdb.expire(now);
            apply(&mut fdb, now, &step);
            naive.apply(now, &step, &limits);
            prop_assert_eq!(fdb.list(now), naive.list(now));
        }
    }

    /// A model that follows the effects equals the database, and every change of a decision has an
    /// effect.
    #[test]
    fn effects_tell_everything(history in history(0..400)) {
        let (mut fdb, mut now) = (Fdb::new(limits()), secs(0));
        let mut mirror = BTreeMap::new();
        for (pause, step) in history {
            now += millis(pause);
            let mut effects = fdb.expire(now);
            let before = decisions(&fdb, now);
            let expired = effects.len();
            effects.extend(apply(&mut fdb, now, &step));
            let told = |key| effects[expired..].iter().any(|effect| {
                matches!(effect, Effect::Invalidate { segment, mac, .. } if (*segment, *mac) == key)
            });
            for (key, decision) in decisions(&fdb, now) {
                prop_assert!(decision == before[&key] || told(key), "{:?} {:?}", key, step);
            }
            for effect in effects {
                match effect {
                    Effect::Learned { segment, mac, port } => {
                        mirror.insert((segment, mac), port);
                    }
                    Effect::Moved { segment, mac, from, to } => {
                        prop_assert_eq!(mirror.insert((segment, mac), to), Some(from));
                    }
                    Effect::Forgotten { segment, mac, port } => {
                        prop_assert_eq!(mirror.remove(&(segment, mac)), Some(port));
                    }
                    _ => {}
                }
            }
            let list: BTreeMap<_, _> =
                fdb.list(now).iter().map(|s| ((s.segment, s.mac), s.port)).collect();
            prop_assert_eq!(&list, &mirror);
        }
    }

    /// Counts match the table, and ports change nothing of what belongs to others.
    #[test]
    fn promises_hold_at_every_step(history in history(0..400)) {
        let (mut fdb, mut now) = (Fdb::new(limits()), secs(0));
        for (pause, step) in history {
            now += millis(pause);
            fdb.expire(now);
            if let Step::Learn(segment, mac, port) = step {
                let view = fdb.at(now);
                let barred = view.is_barred(segment, mac, port);
                let holder = view.port_of(segment, mac);
                apply(&mut fdb, now, &step);
                let after = fdb.at(now).port_of(segment, mac);
                prop_assert!(!barred || (after == holder && after != Some(port)));
            } else {
                apply(&mut fdb, now, &step);
            }
            fdb.expire(now);
            let list = fdb.list(now);
            for port in [A, B, C] {
                let learned = list.iter().filter(|s| s.port == port && !s.pinned).count();
                prop_assert_eq!(fdb.learned_at(port), learned);
            }
            prop_assert!(list.iter().filter(|station| !station.pinned).count() <= limits().total);
        }
    }

    /// A guest that had its address first has it with each frame, and others can make it move only
    /// as often as they may.
    #[test]
    fn a_guest_has_its_address_with_each_frame(
        pauses in prop::collection::vec((0..200u64, prop::collection::vec(2..5u32, 0..4)), 1..200),
    ) {
        let mut fdb = Fdb::new(limits());
        let mut now = secs(0);
        fdb.learn(now, LAN, mac(1), A);
        for (pause, claimants) in pauses {
            now += millis(pause);
            for port in claimants {
                fdb.learn(now, LAN, mac(1), PortId(port));
            }
            fdb.settle(now);
            fdb.learn(now, LAN, mac(1), A);
            prop_assert_eq!(fdb.at(now).port_of(LAN, mac(1)), Some(A));
        }
        // Two moves of each of three and one more a second; behind each, one to each elder claim.
        let most = 4 * 3 * (2 + now.as_secs() + 1);
        prop_assert!(fdb.counters().moved <= most, "{:?} {now:?}", fdb.counters());
    }
}

/// Returns all results of lookups for every address.
fn decisions(
    fdb: &Fdb,
    now: Duration,
) -> BTreeMap<(SegmentId, MacAddr), (Option<PortId>, [bool; 3])> {
    let view = fdb.at(now);
    let keys = [LAN, DMZ]
        .into_iter()
        .flat_map(|s| (1..6).map(move |last| (s, mac(last))));
    keys.map(|(s, m)| {
        (
            (s, m),
            (
                view.port_of(s, m),
                [A, B, C].map(|p| view.is_barred(s, m, p)),
            ),
        )
    })
    .collect()
}
