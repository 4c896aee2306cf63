//! Test bench: a switch with test ports, a control that decides with `policy`, and all counters.
//!
//! [`Bench::step`] lists every counter that its action changes. Any other counter that changes
//! fails the test, with the port's name.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use ipc::records::{Answer, SourceRole, Upcall};
use ipc::switching::Station;
use policy::acl::{Names, RuleId, Rules};
use policy::connection::WithFarPort;
use policy::port_security::{PortSecurity, PortSecurityTable};
use policy::{Action, DscpClasses, Lookup, Model, PortMode, Program, Segment, SegmentId, decide};
use port::counters::{Counters, Traffic};
use port::{DropReason, Offload, PortId, REASONS};
use testkit::net::NetHeader;
use testkit::packets::mac;
use wire::MacAddr;
use wire::virtio::features::Features;

use crate::forward::revalidator::{ControlState, FlowSweep};
use crate::forward::switch::{Switch, UpcallSink};
use crate::ports::batch::{Batch, Pieces};
use crate::ports::calls::PendingCalls;
use crate::ports::guest::header;
use crate::ports::loopback::LoopbackPort;
use crate::ports::payload::{Outgoing, Payload};
use crate::ports::port::{Accepts, Buffers, Port};

pub(super) const BLUE: SegmentId = SegmentId(1);
pub(super) const RED: SegmentId = SegmentId(2);
pub(super) const PLAIN: SegmentId = SegmentId(3);
/// Classes and their numbers.
pub(super) const CLASSES: [(&str, u8); 2] = [("storage", 1), ("voice", 2)];

/// Ports 1, 2 and 3 in blue, 4 a trunk of blue and red, 5 in red, 6 a trunk of plain (untagged) and
/// blue, 7 in plain.
fn model() -> Model {
    let segment = |name: &str, vlan| Segment {
        name: name.into(),
        vlan,
    };
    let modes = [
        (1, PortMode::Access(BLUE)),
        (2, PortMode::Access(BLUE)),
        (3, PortMode::Access(BLUE)),
        (4, PortMode::Trunk(vec![BLUE, RED])),
        (5, PortMode::Access(RED)),
        (6, PortMode::Trunk(vec![PLAIN, BLUE])),
        (7, PortMode::Access(PLAIN)),
    ];
    Model {
        segments: BTreeMap::from([
            (BLUE, segment("blue", Some(10))),
            (RED, segment("red", Some(20))),
            (PLAIN, segment("plain", None)),
        ]),
        ports: modes.map(|(id, mode)| (PortId(id), mode)).into(),
    }
}

/// Frames that a port accepts by the fast path at a time: few, so that both paths alternate.
const PIECES: usize = 3;

/// Port that a test can access while the switch owns it.
#[derive(Clone, Debug)]
pub(super) struct TestPort(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    port: LoopbackPort,
    mtu: u32,
    pairs: u16,
    /// Frames that it accepts at most until they are read.
    room: usize,
    /// Number of lock attempts that fail, as if another worker had the lock.
    held_elsewhere: usize,
    /// Frames delivered to each pair since its last flush, and flushes.
    unflushed: u64,
    by_pair: Vec<u64>,
}

impl TestPort {
    fn new() -> Self {
        Self(Rc::new(RefCell::new(State {
            port: LoopbackPort::new(false),
            mtu: u32::from(u16::MAX),
            pairs: 1,
            room: usize::MAX,
            held_elsewhere: 0,
            unflushed: 0,
            by_pair: vec![0; 64],
        })))
    }

    pub(super) fn set_accepts(&self, accepts: Accepts) {
        self.0.borrow_mut().port.accepts = accepts;
    }

    pub(super) fn set_mtu(&self, mtu: u32) {
        self.0.borrow_mut().mtu = mtu;
    }

    pub(super) fn set_pairs(&self, pairs: u16) {
        self.0.borrow_mut().pairs = pairs;
    }

    pub(super) fn set_room(&self, room: usize) {
        self.0.borrow_mut().room = room;
    }

    /// Lets the next lock attempts fail so many times.
    pub(super) fn hold_elsewhere(&self, times: usize) {
        self.0.borrow_mut().held_elsewhere = times;
    }

    pub(super) fn by_pair(&self) -> Vec<u64> {
        let state = self.0.borrow();
        state.by_pair[..usize::from(state.pairs)].to_vec()
    }

    pub(super) fn push(&self, frame: &[u8], offload: Offload) {
        let mut state = self.0.borrow_mut();
        state.port.waiting.push_back((frame.to_vec(), offload));
    }

    /// Returns the frames that were delivered and flushed since the last call.
    pub(super) fn delivered(&self) -> Vec<(Vec<u8>, Offload)> {
        let mut state = self.0.borrow_mut();
        assert_eq!(state.unflushed, 0, "frames without a flush");
        std::mem::take(&mut state.port.delivered)
    }

    /// Returns how many frames its guest has pushed that were not taken.
    pub(super) fn queued(&self) -> usize {
        self.0.borrow().port.waiting.len()
    }

    /// Returns the bytes of those that were not returned yet.
    pub(super) fn waiting(&self) -> usize {
        let state = self.0.borrow();
        state
            .port
            .delivered
            .iter()
            .map(|(frame, _)| frame.len())
            .sum()
    }

    /// Returns the first of them, so many at most; the others stay.
    pub(super) fn first(&self, count: usize) -> Vec<Vec<u8>> {
        let delivered = &mut self.0.borrow_mut().port.delivered;
        let count = count.min(delivered.len());
        delivered.drain(..count).map(|(frame, _)| frame).collect()
    }

    /// Returns the same frames, which must have no offload.
    pub(super) fn frames(&self) -> Vec<Vec<u8>> {
        let plain = |(frame, offload)| {
            assert_eq!(offload, Offload::default());
            frame
        };
        self.delivered().into_iter().map(plain).collect()
    }
}

impl Port for TestPort {
    fn pairs(&self) -> u16 {
        self.0.borrow().pairs
    }

    fn accepts(&self) -> Accepts {
        self.0.borrow().port.accepts
    }

    fn mtu(&self) -> u32 {
        self.0.borrow().mtu
    }

    fn take(&mut self, pair: u16, batch: &mut Batch) {
        self.0.borrow_mut().port.take(pair, batch);
    }

    fn leave(&mut self, pair: u16, kept: usize) {
        self.0.borrow_mut().port.leave(pair, kept);
    }

    fn release(&mut self, pair: u16, calls: &mut PendingCalls) {
        self.0.borrow_mut().port.release(pair, calls);
    }

    fn hold(&mut self, _pair: u16, wait: bool) -> bool {
        let times = &mut self.0.borrow_mut().held_elsewhere;
        let held = *times > 0 && !wait;
        *times -= usize::from(held);
        !held
    }

    fn buffers(&mut self) -> Option<Buffers> {
        let state = self.0.borrow();
        let used = state.port.delivered.len();
        let free = state.room.saturating_sub(used);
        Some(Buffers { free, used })
    }

    fn deliver_pieces(&mut self, pair: u16, frames: Pieces<'_>) -> Traffic {
        let mut done = Traffic::default();
        for piece in frames.take(PIECES) {
            // SAFETY: the batch that it is of is not cleared before this returns.
            let rest = unsafe { std::slice::from_raw_parts(piece.rest, piece.rest_len as usize) };
            let whole = [piece.head, rest].concat();
            let frame = Outgoing {
                headers: &whole,
                payload: &Payload::empty(),
                offload: Offload::default(),
            };
            if self.deliver(pair, &frame).is_err() {
                break;
            }
            done.packets += 1;
            done.bytes += whole.len() as u64;
        }
        done
    }

    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let mut state = self.0.borrow_mut();
        state.unflushed |= 1 << pair;
        if state.port.delivered.len() >= state.room {
            return Err(DropReason::ReceiverFull);
        }
        state.port.deliver(pair, frame)?;
        state.by_pair[usize::from(pair)] += 1;
        Ok(())
    }

    fn flush(&mut self, pair: u16, _now: u64, _calls: &mut PendingCalls) -> Option<u64> {
        self.0.borrow_mut().unflushed &= !(1 << pair);
        None
    }

    fn arm(&mut self, _pair: u16, _on: bool) -> bool {
        false
    }
}

/// Any port, so that decorated ones can be mixed with plain ones.
pub(super) struct Any(Box<dyn Port>);

impl Port for Any {
    fn pairs(&self) -> u16 {
        self.0.pairs()
    }

    fn accepts(&self) -> Accepts {
        self.0.accepts()
    }

    fn mtu(&self) -> u32 {
        self.0.mtu()
    }

    fn take(&mut self, pair: u16, batch: &mut Batch) {
        self.0.take(pair, batch);
    }

    fn leave(&mut self, pair: u16, kept: usize) {
        self.0.leave(pair, kept);
    }

    fn release(&mut self, pair: u16, calls: &mut PendingCalls) {
        self.0.release(pair, calls);
    }

    fn hold(&mut self, pair: u16, wait: bool) -> bool {
        self.0.hold(pair, wait)
    }

    fn buffers(&mut self) -> Option<Buffers> {
        self.0.buffers()
    }

    fn deliver_pieces(&mut self, pair: u16, frames: Pieces<'_>) -> Traffic {
        self.0.deliver_pieces(pair, frames)
    }

    fn deliver(&mut self, pair: u16, frame: &Outgoing<'_>) -> Result<(), DropReason> {
        self.0.deliver(pair, frame)
    }

    fn flush(&mut self, pair: u16, now: u64, calls: &mut PendingCalls) -> Option<u64> {
        self.0.flush(pair, now, calls)
    }

    fn arm(&mut self, pair: u16, on: bool) -> bool {
        self.0.arm(pair, on)
    }
}

/// Upcalls up to a limit.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) upcalls: Vec<Upcall>,
    pub(super) room: usize,
}

impl UpcallSink for Ring {
    fn send(&mut self, upcall: &Upcall) -> bool {
        if self.upcalls.len() >= self.room {
            return false;
        }
        self.upcalls.push(upcall.clone());
        true
    }
}

/// FDB of the test's control.
#[derive(Debug, Default)]
struct Fdb(HashMap<(SegmentId, MacAddr), PortId>);

impl Lookup for Fdb {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.0.get(&(segment, mac)).copied()
    }

    fn is_barred(&self, _: SegmentId, _: MacAddr, _: PortId) -> bool {
        false
    }
}

/// Counter that a step changes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    /// Port, frames, bytes.
    From(u32, u64, u64),
    /// Port, frames, bytes.
    To(u32, u64, u64),
    /// Port, reason, frames.
    Drop(u32, DropReason, u64),
    Hits(u64),
    Misses(u64),
    Upcalls(u64),
}

/// Names of the rules that [`Bench::counted`] returns.
const RULES: [&str; 4] = ["udp", "all", "arp", "rest"];

pub(super) struct Bench {
    pub(super) switch: Switch<Any>,
    pub(super) ring: Ring,
    pub(super) now: u64,
    ports: BTreeMap<u32, TestPort>,
    counters: Counters,
    fdb: Fdb,
    /// Control's program, with the access lists, which the switch does not get.
    pub(super) program: Program,
}

impl Bench {
    /// Returns a bench with all seven ports.
    pub(super) fn new() -> Self {
        let counters = Counters::heap();
        let mut bench = Self {
            switch: Switch::new(counters.clone(), 7),
            ring: Ring {
                upcalls: Vec::new(),
                room: usize::MAX,
            },
            now: 1_000,
            ports: BTreeMap::new(),
            counters,
            fdb: Fdb::default(),
            program: Program::compile(&model(), 1).expect("a sound model"),
        };
        bench.switch.set_program(bench.program.without_rules());
        for id in 1..=7 {
            let port = TestPort::new();
            bench.ports.insert(id, port.clone());
            bench.plug(id, port);
        }
        bench
    }

    /// Returns a bench whose control knows stations 1 to 3 at the ports of these numbers.
    pub(super) fn with_stations() -> Self {
        let mut bench = Self::new();
        for port in [1, 2, 3] {
            bench.learn(BLUE, mac(port as u8), port);
        }
        bench
    }

    /// Replaces port `id`.
    pub(super) fn plug(&mut self, id: u32, port: impl Port + 'static) {
        self.switch.add_port(PortId(id), Any(Box::new(port)));
    }

    pub(super) fn port(&self, id: u32) -> TestPort {
        self.ports[&id].clone()
    }

    /// Forgets the port of a station.
    pub(super) fn unlearn(&mut self, segment: SegmentId, mac: [u8; 6]) {
        self.fdb.0.remove(&(segment, MacAddr(mac)));
    }

    /// Adds an FDB entry of `mac` at `port`.
    pub(super) fn learn(&mut self, segment: SegmentId, mac: [u8; 6], port: u32) {
        self.fdb.0.insert((segment, MacAddr(mac)), PortId(port));
    }

    /// Sends a frame from `port` and serves it.
    pub(super) fn send(&mut self, port: u32, frame: &[u8]) {
        self.send_with(port, frame, &NetHeader::default());
    }

    pub(super) fn send_with(&mut self, port: u32, frame: &[u8], header: &NetHeader) {
        self.port(port).push(frame, offload(header));
        self.serve(port);
    }

    /// Serves until the queue is empty.
    pub(super) fn serve(&mut self, port: u32) {
        while self.switch.serve(PortId(port), 0, self.now, &mut self.ring) {}
    }

    /// Lets control answer all upcalls. Returns their number.
    pub(super) fn decide(&mut self) -> usize {
        let upcalls = std::mem::take(&mut self.ring.upcalls);
        for upcall in &upcalls {
            let key = upcall.flow_key();
            let far = upcall.connection.and_then(|connection| connection.far);
            let fdb = WithFarPort::new(&self.fdb, far);
            let decision = decide(&self.program, &fdb, &key);
            if fdb.is_for_one(&key) {
                let once = Answer::Once {
                    upcall: upcall.id,
                    action: decision.action,
                    class: decision.class,
                    connection: decision.connection,
                    except: decision.excluded().collect(),
                    rules: decision.rules(),
                    epoch: self.program.epoch(),
                };
                self.switch.answer(once, self.now);
                continue;
            }
            self.switch.answer(
                Answer::Install {
                    upcall: Some(upcall.id),
                    key: *key.masked(&decision.mask).words(),
                    mask: *decision.mask.words(),
                    action: decision.action,
                    segment: decision.segment,
                    source: match decision.learn {
                        Some(_) => SourceRole::Holder,
                        None => SourceRole::Unlearned,
                    },
                    class: decision.class,
                    connection: decision.connection,
                    except: decision.excluded().collect(),
                    rules: decision.rules(),
                    epoch: self.program.epoch(),
                },
                self.now,
            );
        }
        upcalls.len()
    }

    /// Sets control's access lists, in TOML; ports are called `p1` to `p7`, classes as in
    /// [`CLASSES`]. The switch removes the outdated flows.
    pub(super) fn set_access(&mut self, text: &str) {
        let model = toml::from_str(text).expect("a model");
        let ports = (1..=7).map(|id| (format!("p{id}"), PortId(id))).collect();
        let segments = &self::model().segments;
        let ports = &ports;
        let classes = &CLASSES
            .map(|(name, number)| (name.to_owned(), number))
            .into();
        let compiled = Rules::compile(
            &model,
            Names {
                segments,
                ports,
                classes,
            },
        )
        .expect("sound lists");
        let program = self
            .program
            .with_rules(compiled.rules, self.program.epoch() + 1);
        self.run(program);
    }

    /// Sets the port security of a port.
    pub(super) fn set_port_security(&mut self, port: u32, port_security: PortSecurity) {
        let rules = self.program.rules().clone();
        let program = self.program.with_rules(rules, self.program.epoch() + 1);
        let table = PortSecurityTable::from_iter([(PortId(port), port_security)]);
        self.run(program.with_port_security(table));
    }

    /// Sets the classes of DSCPs.
    pub(super) fn set_dscp_classes(&mut self, classes: DscpClasses) {
        let rules = self.program.rules().clone();
        let program = self.program.with_rules(rules, self.program.epoch() + 1);
        self.run(program.with_dscp_classes(classes));
    }

    fn run(&mut self, program: Program) {
        let outdated = program.outdated(&self.program);
        self.program = program;
        self.switch
            .change_program(self.program.without_rules(), outdated, self.now);
        self.finish();
    }

    /// Returns the counts of rules since the last call, by name; the rules are of the list `in` or
    /// `out`.
    pub(super) fn counted(&mut self) -> BTreeMap<&'static str, (u64, u64)> {
        self.switch.begin(99, FlowSweep::CountRules);
        while self.switch.has_work() {
            self.switch.continue_work(self.now);
        }
        let finished = self.switch.take_finished().pop().expect("it is done");
        let name = |id| {
            let ids = RULES.map(|name| [RuleId::of("in", name), RuleId::of("out", name)]);
            let at = ids.iter().position(|ids| ids.contains(&id));
            RULES[at.expect("one of them")]
        };
        let counts = finished.rules.into_iter();
        counts
            .map(|uses| (name(uses.rule), (uses.packets, uses.bytes)))
            .collect()
    }

    /// Returns the state of control.
    pub(super) fn known(&self) -> Arc<ControlState> {
        let known = self.fdb.0.iter();
        let known = known.map(|((segment, mac), port)| Station {
            segment: *segment,
            mac: mac.0,
            port: *port,
        });
        Arc::new(ControlState::new(&known.collect::<Vec<_>>(), &[]))
    }

    /// Runs a check of all flows.
    pub(super) fn check(&mut self) {
        self.switch.begin(1, FlowSweep::Check(self.known()));
        self.finish();
    }

    /// Runs all remaining work. Returns the numbers of the finished sweeps.
    pub(super) fn finish(&mut self) -> Vec<u64> {
        while self.switch.has_work() {
            self.switch.continue_work(self.now);
        }
        let finished = self.switch.take_finished().into_iter();
        finished.map(|sweep| sweep.ticket).collect()
    }

    /// Answers the oldest upcall once, with this action.
    pub(super) fn answer_once(&mut self, action: Action) {
        self.answer_once_as(action, policy::DEFAULT_CLASS);
    }

    /// Answers the oldest upcall once, with this action and class.
    pub(super) fn answer_once_as(&mut self, action: Action, class: u8) {
        let upcall = self.ring.upcalls.remove(0).id;
        self.switch.answer(
            Answer::Once {
                upcall,
                action,
                class,
                connection: policy::ConnectionChange::None,
                except: Vec::new(),
                rules: Vec::new(),
                epoch: self.program.epoch(),
            },
            self.now,
        );
    }

    /// Sends the frame and lets control decide.
    pub(super) fn send_and_decide(&mut self, port: u32, frame: &[u8]) {
        self.send(port, frame);
        self.decide();
    }

    /// Runs `act`, which changes exactly these counters.
    #[track_caller]
    pub(super) fn step(&mut self, moves: &[Move], act: impl FnOnce(&mut Self)) {
        let mut desired = self.reading();
        act(self);
        for m in moves {
            for (name, by) in named(*m) {
                *desired.entry(name).or_default() += by;
            }
        }
        let got = self.reading();
        for (name, value) in &got {
            let expected = desired.get(name).copied().unwrap_or(0);
            assert_eq!(*value, expected, "counter \"{name}\" is not as expected");
        }
        assert_eq!(got.len(), desired.len(), "a counter that does not exist");
    }

    /// Returns all counters by name.
    pub(super) fn reading(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for id in 0..16 {
            let counts = self.counters.read(PortId(id));
            let (from, to) = (counts.from_guest, counts.to_guest);
            for m in [
                Move::From(id, from.packets, from.bytes),
                Move::To(id, to.packets, to.bytes),
            ] {
                all.extend(named(m));
            }
            for reason in REASONS {
                all.extend(named(Move::Drop(id, *reason, counts.dropped(*reason))));
            }
        }
        let figures = self.switch.figures();
        for m in [
            Move::Hits(figures.hits),
            Move::Misses(figures.misses),
            Move::Upcalls(figures.upcalls),
        ] {
            all.extend(named(m));
        }
        all
    }

    /// Returns the frames that were dropped at a port for this reason.
    pub(super) fn dropped(&self, port: u32, reason: DropReason) -> u64 {
        self.counters.read(PortId(port)).dropped(reason)
    }

    /// Returns the frames received, delivered and dropped, over all ports.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        let ids = (0..16).map(|id| self.counters.read(PortId(id)));
        ids.fold((0, 0, 0), |(from, to, drops), c| {
            (
                from + c.from_guest.packets,
                to + c.to_guest.packets,
                drops + c.drops.iter().sum::<u64>(),
            )
        })
    }
}

fn named(m: Move) -> Vec<(String, u64)> {
    let traffic = |way, id, packets, bytes| {
        vec![
            (format!("port {id} {way} packets"), packets),
            (format!("port {id} {way} bytes"), bytes),
        ]
    };
    match m {
        Move::From(id, packets, bytes) => traffic("from", id, packets, bytes),
        Move::To(id, packets, bytes) => traffic("to", id, packets, bytes),
        Move::Drop(id, reason, n) => vec![(format!("port {id} drops {reason}"), n)],
        Move::Hits(n) => vec![("hits".into(), n)],
        Move::Misses(n) => vec![("misses".into(), n)],
        Move::Upcalls(n) => vec![("upcalls".into(), n)],
    }
}

/// Returns the offload of a sender's header when everything was negotiated.
pub(super) fn offload(header: &NetHeader) -> Offload {
    let header = wire::virtio::net::NetHeader::decode(&header.to_bytes());
    header::decode(&header, Features::all()).expect("a legal header")
}

/// Returns the header that a receiver gets.
pub(super) fn encoded(offload: &Offload) -> NetHeader {
    NetHeader::from_bytes(super::header::bytes(header::encode(offload, 1)))
}
