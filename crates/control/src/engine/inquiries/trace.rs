//! What would become of a frame: decided as upcalls are, told step by step, and nothing comes of it.

use std::net::IpAddr;

use api::v1::{
    PortSpec, PortState, Problem, ProblemKind, TRACE_MAX, Trace, TraceDocument, TraceLimit,
    TraceMirror, TraceOutcome, TraceRequest, TracedFlow,
};
use channel::flows::{FoundFlow, MAX_KEYS};
use policy::guard::Bound;
use policy::{Decision, Lookup, SegmentId, Step, explain};
use port::PortId;
use wire::expression::FrameText;
use wire::{FlowKey, MacAddr};

use crate::engine::guards::Known;
use crate::engine::{Engine, documents, unavailable};
use crate::learning::Hearing;
use crate::trace::beside::{self, Copying};
use crate::trace::frame::{self, Frame};
use crate::trace::steps::{self, Scene};
use crate::trace::{Names, flow};

const _: () = assert!(TRACE_MAX <= MAX_KEYS);

/// The address of whoever is not known, in a frame of which nothing depends on that.
const NOBODY: MacAddr = MacAddr([2, 0, 0, 0, 0, 0]);

/// A frame that is asked about, and what of it was filled in.
struct Question {
    frame: Frame,
    filled: Vec<String>,
}

/// The forwarding database, once the frame has been heard: its port is barred from its source.
struct Barring<'a>(Known<'a>);

impl Lookup for Barring<'_> {
    fn port_of(&self, segment: SegmentId, mac: MacAddr) -> Option<PortId> {
        self.0.port_of(segment, mac)
    }

    fn is_barred(&self, _: SegmentId, _: MacAddr, _: PortId) -> bool {
        true
    }

    fn bound(&self, port: PortId) -> Bound {
        self.0.bound(port)
    }
}

fn wrong(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Invalid, detail).with_field("expression")
}

impl Engine {
    /// Answers `POST /v1/trace`.
    ///
    /// # Errors
    /// 422 for what is no port, no expression or no frame; 503 when the switch does not answer.
    pub(in crate::engine) fn trace(
        &mut self,
        request: &TraceRequest,
    ) -> Result<TraceDocument, Problem> {
        let mut ports = self.saved.wanted.ports.iter();
        let spec = ports.find(|spec| spec.name == request.port);
        let spec = spec.ok_or_else(|| {
            let detail = format!("there is no port `{}`", request.port);
            Problem::new(ProblemKind::Invalid, detail).with_field("port")
        })?;
        let port = self.saved.numbers.ports.get(&spec.name).copied();
        let port = port.ok_or_else(|| Problem::internal("a port without a number"))?;
        let questions = self.questions(request, port, spec)?;
        self.find_owners();
        let key_of = |question: &Question| {
            let (headers, length) = question.frame.bytes();
            self.guarded_key(question.frame.key(port.0), headers, length)
        };
        let keys: Vec<FlowKey> = questions.iter().map(key_of).collect();
        let words = keys.iter().map(|key| *key.words()).collect();
        let flows = self.switch.find_flows(words).map_err(unavailable)?;
        let (states, _) = self.switch.port_states().map_err(unavailable)?;
        let state_of = |id: PortId| {
            let state = states.iter().find(|state| state.config.id == id);
            documents::state_of(state)
        };
        let traces = questions.into_iter().zip(&keys).enumerate();
        let traces = traces.map(|(at, (question, key))| {
            let flows = flows.iter().filter(|f| usize::from(f.question) == at);
            self.trace_one(question, key, flows, &state_of)
        });
        Ok(TraceDocument {
            port: request.port.clone(),
            epoch: self.program.epoch(),
            traces: traces.collect(),
        })
    }

    /// The frames of a request.
    fn questions(
        &self,
        request: &TraceRequest,
        port: PortId,
        spec: &PortSpec,
    ) -> Result<Vec<Question>, Problem> {
        let invalid = |field: &str, detail: &str| {
            let problem = Problem::new(ProblemKind::Invalid, detail);
            Err(problem.with_field(field))
        };
        match (&request.expression, request.frames.as_slice()) {
            (Some(text), []) => Ok(vec![self.described(text, port, spec)?]),
            (Some(_), _) => invalid("frames", "either an expression or frames, not both"),
            (None, []) => invalid("expression", "an expression or frames are to be given"),
            (None, frames) if frames.len() > TRACE_MAX => {
                invalid("frames", &format!("{TRACE_MAX} frames at most"))
            }
            (None, frames) => {
                let frames = frames.iter().enumerate();
                let question = |(at, frame)| {
                    let (frame, filled) = (Frame::read(frame, at)?, Vec::new());
                    Ok(Question { frame, filled })
                };
                frames.map(question).collect()
            }
        }
    }

    /// The frame of an expression, with the addresses that it leaves out.
    fn described(&self, text: &str, port: PortId, spec: &PortSpec) -> Result<Question, Problem> {
        let described = FrameText::parse(text).map_err(|error| {
            let problem = Problem::new(ProblemKind::Invalid, error.to_string());
            problem.with_column("expression", error.column)
        })?;
        let mut filled = Vec::new();
        // A frame without a segment is dropped, from and to whomever it is.
        let segment = self.program.segment_of(port, described.vlan).ok();
        let source = match (described.source(), segment) {
            (Some(mac), _) => mac,
            (None, None) => NOBODY,
            (None, Some(segment)) => {
                let (mac, how) = self.find_source(&described, segment, port, spec)?;
                filled.push(format!("source {mac}: {how}"));
                mac
            }
        };
        let destination = match (described.implied_destination(), segment) {
            (Some(mac), _) => mac,
            (None, None) => NOBODY,
            (None, Some(segment)) => {
                let (mac, how) = self.find_destination(&described, segment)?;
                filled.push(format!("destination {mac}: {how}"));
                mac
            }
        };
        let frame = Frame::new(described.build(source, destination));
        Ok(Question { frame, filled })
    }

    /// The address of a port's guest: the one that is configured, that which has used the IP address, or the only one there is.
    fn find_source(
        &self,
        described: &FrameText,
        segment: SegmentId,
        port: PortId,
        spec: &PortSpec,
    ) -> Result<(MacAddr, String), Problem> {
        let configured = spec.mac.as_deref().and_then(api::v1::parse_mac);
        if let Some(mac) = configured {
            return Ok((MacAddr(mac), format!("that of {}", spec.name)));
        }
        let now = self.now();
        let here: Vec<MacAddr> = self.fdb.stations_at(now, segment, port).collect();
        let sender = frame::sender(described).and_then(|ip| self.seen_with(segment, ip));
        if let Some((mac, how)) = sender
            && here.contains(&mac)
        {
            return Ok((mac, how));
        }
        let ask = "say both addresses: `ether SOURCE > DESTINATION` in front";
        match here.as_slice() {
            [mac] => Ok((*mac, format!("the only station behind {}", spec.name))),
            [] => Err(wrong(format!(
                "no station is known behind {}; {ask}",
                spec.name
            ))),
            several => {
                let (count, name) = (several.len(), &spec.name);
                Err(wrong(format!(
                    "{count} stations are known behind {name}; {ask}"
                )))
            }
        }
    }

    /// The address of the station that a frame goes to.
    fn find_destination(
        &self,
        described: &FrameText,
        segment: SegmentId,
    ) -> Result<(MacAddr, String), Problem> {
        let ask = "say both addresses: `ether SOURCE > DESTINATION` in front";
        let Some(ip) = described.next_hop() else {
            return Err(wrong(format!("the frame has no destination; {ask}")));
        };
        self.seen_with(segment, ip)
            .ok_or_else(|| wrong(format!("nobody is known to have {ip}; {ask}")))
    }

    /// The station that an IP address was seen with.
    fn seen_with(&self, segment: SegmentId, ip: IpAddr) -> Option<(MacAddr, String)> {
        let (mac, at) = self.inquiries.seen.find(segment, ip)?;
        let ago = self.now().saturating_sub(at);
        let how = format!("seen with {ip} {} ago", crate::trace::time(ago));
        Some((mac, how))
    }

    fn trace_one<'a>(
        &self,
        question: Question,
        key: &FlowKey,
        flows: impl Iterator<Item = &'a FoundFlow>,
        states: &dyn Fn(PortId) -> PortState,
    ) -> Trace {
        let names = Names::new(&self.saved.numbers.ports, &self.saved.numbers.segments);
        let frame = question.frame.describe();
        let filled = question.filled;
        if question.frame.is_runt() {
            let (steps, outcome) = steps::runt();
            let flows = Vec::new();
            return Trace {
                frame,
                filled,
                steps,
                limits: self.limits_met(key, &names, &outcome),
                mirrors: Vec::new(),
                outcome,
                flows,
            };
        }
        let scene = Scene {
            program: &self.program,
            fdb: &self.fdb,
            now: self.now(),
            names: &names,
            states,
        };
        let (decision, told) = self.foresee(key);
        let flows = flows.map(|found| TracedFlow {
            worker: found.worker,
            flow: flow::entry(&found.flow, &names),
            disagrees: flow::disagrees(&found.flow, &decision, &names),
        });
        let mut steps = scene.tell(key, &told, &decision);
        let mut outcome = scene.outcome(key, &decision);
        let (headers, length) = question.frame.bytes();
        if let Some(reply) = self.reply_to(headers, length, key, &decision) {
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
            mirrors: self.copies(&question.frame, key, &names, &outcome),
            outcome,
            flows: flows.collect(),
        }
    }

    /// The limits that a frame meets of which this comes.
    fn limits_met(&self, key: &FlowKey, names: &Names, outcome: &TraceOutcome) -> Vec<TraceLimit> {
        let limited = self.saved.wanted.ports.iter();
        let limited = limited.filter(|port| !port.limits.is_nothing());
        let limits = limited.map(|port| (&*port.name, &port.limits)).collect();
        let sender = names.port(PortId(key.in_port()));
        beside::limits(&sender, key.dmac(), outcome, &limits)
    }

    /// The copies that mirrors make of a frame of which this comes.
    fn copies(
        &self,
        frame: &Frame,
        key: &FlowKey,
        names: &Names,
        outcome: &TraceOutcome,
    ) -> Vec<TraceMirror> {
        // What the switch was told is what is wanted, in the same order.
        let mirrors = self.saved.wanted.mirrors.iter().zip(&self.mirrors);
        let mirrors = mirrors.map(|(spec, order)| {
            let mut order = order.clone();
            order.sort();
            let (name, to) = (&*spec.name, &*spec.to);
            Copying { name, to, order }
        });
        let mirrors: Vec<Copying<'_>> = mirrors.collect();
        let port = PortId(key.in_port());
        let segment = self.program.segment_of(port, key.vlan()).ok();
        let id_of = |name: &str| self.saved.numbers.ports.get(name).copied();
        let sent = (&*names.port(port), segment);
        beside::mirrors(&mirrors, frame, sent, outcome, &id_of)
    }

    /// The decision that an upcall with this key would get now, and its steps.
    fn foresee(&self, key: &FlowKey) -> (Decision, Vec<Step>) {
        let (now, port) = (self.now(), PortId(key.in_port()));
        let explained = explain(&self.program, &self.known(now), key);
        // An upcall's source is learned, and then it is decided once more.
        let heard = explained
            .0
            .learn
            .map(|(segment, mac)| self.fdb.foresee(now, segment, mac, port));
        match heard {
            Some(Hearing::Barred) => explain(&self.program, &Barring(self.known(now)), key),
            _ => explained,
        }
    }
}
