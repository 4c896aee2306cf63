//! Trace: the predicted path of a frame. It is decided as an upcall is and explained step by step,
//! without effect.

use std::net::IpAddr;

use api::v1::{
    PortKind, PortSpec, PortState, PrefilterEntry, Problem, ProblemKind, TRACE_MAX, Trace,
    TraceDocument, TraceLimit, TraceMirror, TraceOutcome, TraceRequest, TracedFlow,
};
use config::desired;
use conntrack::packet::{self, Reading};
use conntrack::{Ingress, Judgement, Settings, Stations};
use filter::FrameText;
use ipc::flows::{FoundFlow, MAX_KEYS};
use ipc::mirrors::Mirror;
use policy::connection::WithFarPort;
use policy::{Decision, SegmentId, Step, explain};
use port::PortId;
use wire::{FlowKey, MacAddr};

use super::{connections, prefilters, status};
use crate::engine::forwarding::{Directory, Forwarding};
use crate::engine::{Engine, SharedEngine, unavailable};
use crate::saved::SavedState;
use crate::trace::beside::{self, Copying};
use crate::trace::frame::{self, Frame};
use crate::trace::steps::{self, Scene};
use crate::trace::tracked::{FrameConnection, KnownConnection};
use crate::trace::{Names, flow};

const _: () = assert!(TRACE_MAX <= MAX_KEYS);

/// MAC address in place of an unknown one, in frames whose path does not depend on it.
const UNKNOWN_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0]);

/// A frame to trace, and the fields that were filled in.
struct TracedFrame {
    frame: Frame,
    filled: Vec<String>,
    /// The frame was made from an expression, which has no sequence numbers.
    is_made: bool,
}

fn invalid_expression(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Invalid, detail).with_field("expression")
}

/// Handles `POST /v1/trace`.
///
/// # Errors
/// 422 for an unknown port, or a malformed expression or frame; 503 when the switch does not
/// reply.
pub(in crate::engine) async fn trace(
    engine: &SharedEngine<'_>,
    request: &TraceRequest,
) -> Result<TraceDocument, Problem> {
    let (traced_frames, mut keys) = engine.with(|e| {
        let directory = Directory::new(&e.ports, &e.store);
        e.forwarding.refresh_owners(directory);
        Tracer::new(e).frames(request)
    })?;
    let connections: Vec<_> = engine.with(|e| {
        let frames = traced_frames.iter().zip(&mut keys);
        frames.map(|(traced, key)| track(e, traced, key)).collect()
    });
    let words = keys.iter().map(|key| *key.words()).collect();
    let flows = engine.with(|e| e.links.switch.find_flows(words)).await;
    let flows = flows.map_err(unavailable)?;
    let states = engine.with(|e| e.links.switch.port_states()).await;
    let (states, _) = states.map_err(unavailable)?;
    let state_of = |id: PortId| {
        let state = states.iter().find(|state| state.config.id == id);
        status::state_of(state)
    };
    Ok(engine.with(|e| {
        let tracer = Tracer::new(e);
        let frames = keys.iter().zip(&connections);
        let traces = traced_frames.into_iter().zip(frames).enumerate();
        let traces = traces.map(|(at, (traced, (key, connection)))| {
            let flows = flows.iter().filter(|f| usize::from(f.question) == at);
            let key = (key, connection.as_ref());
            tracer.trace_one(traced, key, flows, &state_of)
        });
        TraceDocument {
            port: request.port.clone(),
            epoch: tracer.forwarding.program.epoch(),
            traces: traces.collect(),
        }
    }))
}

/// Looks a frame up in the table of connections, without an effect on it, and adds the state to
/// its key. `None`: its segment is not tracked.
fn track(engine: &mut Engine, traced: &TracedFrame, key: &mut FlowKey) -> Option<FrameConnection> {
    let (program, port) = (&engine.forwarding.program, PortId(key.in_port()));
    let segment = program.segment_of(port, key.vlan()).ok()?;
    let epoch = program.tracks(segment)?;
    // The port's guest may leave checksums to the device, and those beyond the snapshot are
    // not known.
    let trusted = true;
    let (headers, _) = traced.frame.bytes();
    let read = packet::read(segment.0, &traced.frame.parse(), headers, trusted);
    let now = engine.forwarding.now();
    let station = engine.forwarding.fdb.station(now, segment, key.smac());
    let from = Ingress {
        port: port.0 as u16,
        is_home: station.is_some_and(|station| station.port == port),
        stations: engine
            .connections
            .reader()
            .map_or_else(Stations::default, |reader| {
                reader.stations(key.smac(), key.dmac())
            }),
    };
    let connection = connection_of(engine, &read, from, epoch, traced.is_made);
    *key = connection.key(*key);
    Some(connection)
}

fn connection_of(
    engine: &mut Engine,
    read: &Reading,
    from: Ingress,
    epoch: u16,
    is_made: bool,
) -> FrameConnection {
    let packet = match read {
        Reading::Untracked(why) => return FrameConnection::Untracked(*why),
        Reading::Invalid(why, _) => {
            return FrameConnection::Judged(Judgement::Invalid(*why), None);
        }
        Reading::Later(_) => return FrameConnection::LaterFragment,
        Reading::Packet(packet) => packet,
    };
    let usual = engine.connections.settings();
    let settings = Settings {
        strict: usual.strict && !is_made,
        ..usual
    };
    let now = crate::connections::now();
    let Some(reader) = engine.connections.reader() else {
        return FrameConnection::NoTable;
    };
    let seen = reader.judge(packet, from, epoch, (&settings, now));
    let known = seen.connection.map(|known| {
        let rules = connections::rule_names(&engine.store.saved, [known.rule]);
        KnownConnection::new(&known, rules.get(&known.rule), (&settings, now))
    });
    FrameConnection::Judged(seen.judgement, known)
}

/// State that predicts the path of a frame.
struct Tracer<'a> {
    forwarding: &'a Forwarding,
    saved: &'a SavedState,
    mirrors: &'a [Mirror],
    engine: &'a Engine,
}

impl<'a> Tracer<'a> {
    fn new(engine: &'a Engine) -> Self {
        Self {
            forwarding: &engine.forwarding,
            saved: &engine.store.saved,
            mirrors: &engine.ports.mirrors,
            engine,
        }
    }

    /// Returns the frames of a request, and their keys.
    fn frames(&self, request: &TraceRequest) -> Result<(Vec<TracedFrame>, Vec<FlowKey>), Problem> {
        let mut ports = self.saved.desired.ports.iter();
        let spec = ports.find(|spec| spec.name == request.port);
        let spec = spec.ok_or_else(|| {
            let detail = format!("there is no port `{}`", request.port);
            Problem::new(ProblemKind::Invalid, detail).with_field("port")
        })?;
        let port = self.saved.numbers.ports.get(&spec.name).copied();
        let port = port.ok_or_else(|| Problem::internal("a port without a number"))?;
        let traced_frames = self.traced_frames(request, port, spec)?;
        let key_of = |traced: &TracedFrame| {
            let (headers, length) = traced.frame.bytes();
            let key = traced.frame.key(port.0);
            self.forwarding.classified_key(key, headers, length)
        };
        let keys = traced_frames.iter().map(key_of).collect();
        Ok((traced_frames, keys))
    }

    fn traced_frames(
        &self,
        request: &TraceRequest,
        port: PortId,
        spec: &PortSpec,
    ) -> Result<Vec<TracedFrame>, Problem> {
        let invalid = |field: &str, detail: &str| {
            let problem = Problem::new(ProblemKind::Invalid, detail);
            Err(problem.with_field(field))
        };
        match (&request.expression, request.frames.as_slice()) {
            (Some(text), []) => Ok(vec![self.build_frame(text, port, spec)?]),
            (Some(_), _) => invalid("frames", "either an expression or frames, not both"),
            (None, []) => invalid("expression", "an expression or frames are required"),
            (None, frames) if frames.len() > TRACE_MAX => {
                invalid("frames", &format!("{TRACE_MAX} frames at most"))
            }
            (None, frames) => {
                let frames = frames.iter().enumerate();
                let traced = |(at, frame)| {
                    Ok(TracedFrame {
                        frame: Frame::read(frame, at)?,
                        filled: Vec::new(),
                        is_made: false,
                    })
                };
                frames.map(traced).collect()
            }
        }
    }

    /// Returns the frame of an expression, with the addresses that it leaves out filled in.
    fn build_frame(
        &self,
        text: &str,
        port: PortId,
        spec: &PortSpec,
    ) -> Result<TracedFrame, Problem> {
        let described = FrameText::parse(text).map_err(|error| {
            let problem = Problem::new(ProblemKind::Invalid, error.to_string());
            problem.with_column("expression", error.column)
        })?;
        let mut filled = Vec::new();
        // A frame without a segment is dropped, whatever its addresses are.
        let segment = self
            .forwarding
            .program
            .segment_of(port, described.vlan)
            .ok();
        let source = match (described.source(), segment) {
            (Some(mac), _) => mac,
            (None, None) => UNKNOWN_MAC,
            (None, Some(segment)) => {
                let (mac, how) = self.find_source(&described, segment, port, spec)?;
                filled.push(format!("source {mac}: {how}"));
                mac
            }
        };
        let destination = match (described.implied_destination(), segment) {
            (Some(mac), _) => mac,
            (None, None) => {
                let ip = described.next_hop();
                let known = ip.and_then(|ip| Some((ip, self.seen_elsewhere(spec, ip)?)));
                filled.extend(
                    known.map(|(ip, place)| format!("destination: {ip} is known in {place}")),
                );
                UNKNOWN_MAC
            }
            (None, Some(segment)) => {
                let (mac, how) = self.find_destination(&described, segment, spec)?;
                filled.push(format!("destination {mac}: {how}"));
                mac
            }
        };
        let frame = Frame::new(described.build(source, destination));
        Ok(TracedFrame {
            frame,
            filled,
            is_made: true,
        })
    }

    /// Returns the MAC address of a port's guest: the configured one, the one that has used the IP
    /// address, or the only one.
    fn find_source(
        &self,
        described: &FrameText,
        segment: SegmentId,
        port: PortId,
        spec: &PortSpec,
    ) -> Result<(MacAddr, String), Problem> {
        let configured = spec.mac.as_deref().and_then(api::v1::parse_mac);
        if let Some(mac) = configured {
            return Ok((MacAddr(mac), format!("configured for {}", spec.name)));
        }
        let now = self.forwarding.now();
        let here: Vec<MacAddr> = self
            .forwarding
            .fdb
            .stations_at(now, segment, port)
            .collect();
        let sender = frame::sender(described).and_then(|ip| self.seen_with(segment, ip));
        if let Some((mac, how)) = sender
            && here.contains(&mac)
        {
            return Ok((mac, how));
        }
        let hint = "give both addresses: `ether SOURCE > DESTINATION` in front";
        match here.as_slice() {
            [mac] => Ok((
                *mac,
                format!("the only MAC address learned on {}", spec.name),
            )),
            [] => {
                let is_there = |other| {
                    let mut all = self.forwarding.fdb.stations_at(now, other, port);
                    all.next().is_some()
                };
                Err(invalid_expression(match self.elsewhere(spec, is_there) {
                    Some(place) => format!(
                        "no MAC address is learned on {} without a tag, but in {place}",
                        spec.name
                    ),
                    None => format!("no MAC address is learned on {}; {hint}", spec.name),
                }))
            }
            several => {
                let (count, name) = (several.len(), &spec.name);
                Err(invalid_expression(format!(
                    "{count} MAC addresses are learned on {name}; {hint}"
                )))
            }
        }
    }

    /// Returns the MAC address that a frame is sent to: the one that was seen with its IP address,
    /// or that of the gateway of the segment's user port.
    fn find_destination(
        &self,
        described: &FrameText,
        segment: SegmentId,
        spec: &PortSpec,
    ) -> Result<(MacAddr, String), Problem> {
        let hint = "give both addresses: `ether SOURCE > DESTINATION` in front";
        let Some(ip) = described.next_hop() else {
            return Err(invalid_expression(format!(
                "the frame has no destination; {hint}"
            )));
        };
        let seen = self.seen_with(segment, ip);
        let found = seen.or_else(|| self.gateway(segment, ip));
        found.ok_or_else(|| {
            invalid_expression(match self.seen_elsewhere(spec, ip) {
                Some(place) => format!("{ip} is known in {place}"),
                None => format!("no MAC address is known for {ip}; {hint}"),
            })
        })
    }

    /// Returns the MAC address of the gateway by which an address is reached: that of the user port
    /// of the segment.
    fn gateway(&self, segment: SegmentId, ip: IpAddr) -> Option<(MacAddr, String)> {
        let SavedState {
            desired, numbers, ..
        } = self.saved;
        let is_here = |port: &&PortSpec| {
            let own = port.segment.as_ref();
            let own = own.and_then(|name| numbers.segments.get(name));
            port.kind == PortKind::User && own == Some(&segment)
        };
        let port = desired.ports.iter().find(is_here)?;
        let mac = desired::gateway_for(desired, port, ip)?;
        let how = format!("of the gateway of {}, by which {ip} is reached", port.name);
        Some((MacAddr(mac), how))
    }

    /// Returns the segment of a trunk in which an IP address was seen, as a text with its VLAN.
    fn seen_elsewhere(&self, spec: &PortSpec, ip: IpAddr) -> Option<String> {
        self.elsewhere(spec, |segment| self.seen_with(segment, ip).is_some())
    }

    /// Returns the first segment with a VLAN of a trunk that fits, like `blue: vlan 10`.
    fn elsewhere(&self, spec: &PortSpec, fits: impl Fn(SegmentId) -> bool) -> Option<String> {
        let all = spec.trunk.iter().flatten();
        let mut tagged = all.filter_map(|name| {
            let id = self.saved.numbers.segments.get(name)?;
            let vlan = self.saved.desired.segment(name)?.vlan?;
            Some((name, *id, vlan))
        });
        let (name, _, vlan) = tagged.find(|(_, id, _)| fits(*id))?;
        Some(format!("{name}: vlan {vlan}"))
    }

    /// Returns the MAC address that an IP address was seen with.
    fn seen_with(&self, segment: SegmentId, ip: IpAddr) -> Option<(MacAddr, String)> {
        let (mac, at) = self.forwarding.seen.find(segment, ip)?;
        let ago = self.forwarding.now().saturating_sub(at);
        let how = format!("seen with {ip} {} ago", crate::trace::time(ago));
        Some((mac, how))
    }

    fn trace_one<'f>(
        &self,
        traced: TracedFrame,
        (key, connection): (&FlowKey, Option<&FrameConnection>),
        flows: impl Iterator<Item = &'f FoundFlow>,
        states: &dyn Fn(PortId) -> PortState,
    ) -> Trace {
        let numbers = &self.saved.numbers;
        let names = Names::new(&numbers.ports, &numbers.segments, &numbers.classes);
        let frame = traced.frame.describe();
        let filled = traced.filled;
        if traced.frame.is_runt() {
            let (steps, outcome) = steps::runt();
            let flows = Vec::new();
            return Trace {
                frame,
                filled,
                steps,
                limits: self.limits_met(key, &names, &outcome),
                prefilter: None,
                mirrors: Vec::new(),
                outcome,
                flows,
            };
        }
        let scene = Scene {
            program: &self.forwarding.program,
            fdb: &self.forwarding.fdb,
            now: self.forwarding.now(),
            names: &names,
            connection,
            states,
        };
        let far = connection.and_then(FrameConnection::far);
        let (decision, explained) = self.predict(key, far);
        let flows = flows.map(|found| TracedFlow {
            worker: found.worker,
            flow: flow::entry(&found.flow, &names),
            disagrees: flow::disagrees(&found.flow, &decision, &names),
        });
        let mut steps = scene.steps(key, &explained, &decision);
        let mut outcome = scene.outcome(key, &decision);
        let (headers, length) = traced.frame.bytes();
        if let Some(reply) = self.forwarding.reply_to(headers, length, key, &decision) {
            let owner = (reply.port, reply.owner);
            let (step, answered) = scene.answered(key, reply.target, owner);
            steps.push(step);
            outcome = answered;
        }
        Trace {
            frame,
            filled,
            steps,
            limits: self.limits_met(key, &names, &outcome),
            prefilter: self.prefilter_entry(&traced.frame, key, connection),
            mirrors: self.copies(&traced.frame, key, &names, &outcome),
            outcome,
            flows: flows.collect(),
        }
    }

    /// Returns the rate limits that a frame with this outcome meets.
    fn limits_met(&self, key: &FlowKey, names: &Names, outcome: &TraceOutcome) -> Vec<TraceLimit> {
        let limited = self.saved.desired.ports.iter();
        let limited = limited.filter(|port| !port.limits.is_nothing());
        let limits = limited.map(|port| (&*port.name, &port.limits)).collect();
        let sender = names.port(PortId(key.in_port()));
        beside::limits(&sender, key.dmac(), outcome, &limits)
    }

    /// Returns the entry of the port's prefilter that the frame meets.
    fn prefilter_entry(
        &self,
        frame: &Frame,
        key: &FlowKey,
        connection: Option<&FrameConnection>,
    ) -> Option<PrefilterEntry> {
        let is_known = matches!(connection, Some(FrameConnection::Judged(_, Some(_))));
        let is_plain = offload::is_plain(&frame.parse()) && !is_known;
        let found = is_plain.then(|| prefilters::entry_of(self.engine, PortId(key.in_port()), key));
        found.flatten()
    }

    /// Returns the copies that mirrors make of a frame with this outcome.
    fn copies(
        &self,
        frame: &Frame,
        key: &FlowKey,
        names: &Names,
        outcome: &TraceOutcome,
    ) -> Vec<TraceMirror> {
        // The switch's mirrors are the desired ones, in the same order.
        let mirrors = self.saved.desired.mirrors.iter().zip(self.mirrors);
        let mirrors = mirrors.map(|(spec, order)| {
            let mut order = order.clone();
            order.sort();
            let (name, to) = (&*spec.name, &*spec.to);
            Copying { name, to, order }
        });
        let mirrors: Vec<Copying<'_>> = mirrors.collect();
        let port = PortId(key.in_port());
        let segment = self.forwarding.program.segment_of(port, key.vlan()).ok();
        let id_of = |name: &str| self.saved.numbers.ports.get(name).copied();
        let sent = (&*names.port(port), segment);
        beside::mirrors(&mirrors, frame, sent, outcome, &id_of)
    }

    /// Returns the decision that an upcall with this key would get now, and its steps.
    /// `far`: the port that its connection goes to.
    fn predict(&self, key: &FlowKey, far: Option<PortId>) -> (Decision, Vec<Step>) {
        let known = self.forwarding.known(self.forwarding.now());
        explain(
            &self.forwarding.program,
            &WithFarPort::new(&known, far),
            key,
        )
    }
}
