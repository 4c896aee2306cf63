//! Descriptions of the steps of a decision.

use std::net::IpAddr;
use std::time::Duration;

use api::v1::{
    PortState, TraceAction, TraceOutcome, TraceReceiver, TraceRuling, TraceStage, TraceStep,
};
use policy::acl::{By, Direction, Ruling, Verdict};
use policy::connection::Standing;
use policy::{
    Action, ClassOrigin, Decision, Destination, DropReason, ListEvaluation, PortId, Program,
    SegmentId, Step,
};
use wire::{FlowKey, MacAddr};

use super::Names;
use super::tracked::FrameConnection;
use super::words::{connection, done, list, reason, tag, time};
use crate::learning::{Fdb, LearnPreview, Refusal};

/// The input of an explanation.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) program: &'a Program,
    pub(crate) fdb: &'a Fdb,
    pub(crate) now: Duration,
    pub(crate) names: &'a Names,
    /// The connection of the frame, in a tracked segment.
    pub(crate) connection: Option<&'a FrameConnection>,
    /// The states of ports.
    pub(crate) states: &'a dyn Fn(PortId) -> PortState,
}

fn step(stage: TraceStage, text: String) -> TraceStep {
    TraceStep {
        stage,
        text,
        drop: None,
        segment: None,
        ruling: None,
        port: None,
    }
}

/// Returns a step that drops the frame.
fn end(stage: TraceStage, why: DropReason, text: String) -> TraceStep {
    TraceStep {
        drop: Some(why.name().to_owned()),
        ..step(stage, text)
    }
}

/// Returns the steps and the outcome of a frame shorter than an Ethernet header.
pub(crate) fn runt() -> (Vec<TraceStep>, TraceOutcome) {
    let why = DropReason::Runt;
    let step = end(TraceStage::Frame, why, reason(why));
    (vec![step], dropped(why))
}

fn dropped(why: DropReason) -> TraceOutcome {
    TraceOutcome {
        action: TraceAction::Drop,
        text: format!("dropped, {}", reason(why)),
        reason: Some(why.name().to_owned()),
        receivers: Vec::new(),
    }
}

fn class_of(class: &str, origin: ClassOrigin) -> TraceStep {
    let origin = match origin {
        ClassOrigin::FromGuest => "by the rule of the sender".to_owned(),
        ClassOrigin::ToGuest => "by the rule of the receiver".to_owned(),
        ClassOrigin::Connection => "by the rule that let its connection in".to_owned(),
        ClassOrigin::Dscp(dscp) => format!("by DSCP {dscp}"),
    };
    step(TraceStage::Policy, format!("class {class}, {origin}"))
}

impl Scene<'_> {
    /// Describes the steps of a decision about a frame with this key.
    pub(crate) fn steps(
        &self,
        key: &FlowKey,
        steps: &[Step],
        decision: &Decision,
    ) -> Vec<TraceStep> {
        let mut described: Vec<TraceStep> = Vec::new();
        for step in steps {
            let next = match step {
                Step::Addresses(why) => end(TraceStage::Frame, *why, reason(*why)),
                Step::Segment(found) => self.segment(key, *found),
                Step::PortSecurity(why) => end(TraceStage::Source, *why, reason(*why)),
                Step::Source { barred } => self.source(key, *barred, decision),
                Step::Unfiltered => step_unfiltered(),
                Step::Connection(standing) => self.connection(key, *standing),
                Step::Lists(asked) => {
                    let joins = |last: &mut TraceStep| self.joins(last, asked);
                    if described.last_mut().is_some_and(joins) {
                        continue;
                    }
                    self.lists(asked)
                }
                Step::Destination(destination) => self.station(key, *destination, decision),
                Step::Class(class, origin) => class_of(self.names.class(*class), *origin),
            };
            described.push(next);
        }
        described
    }

    fn connection(&self, key: &FlowKey, standing: Standing) -> TraceStep {
        let text = connection(key.ct().state(), standing, self.connection);
        step(TraceStage::Connection, text)
    }

    fn segment(&self, key: &FlowKey, found: Result<SegmentId, DropReason>) -> TraceStep {
        let (port, tag) = (self.names.port(PortId(key.in_port())), tag(key.vlan()));
        match found {
            Ok(segment) => {
                let name = self.names.segment(segment);
                TraceStep {
                    segment: Some(name.clone()),
                    ..step(TraceStage::Segment, format!("{name}, as {tag} from {port}"))
                }
            }
            Err(why) => {
                let text = format!("none, as {tag} from {port}: {}", reason(why));
                end(TraceStage::Segment, why, text)
            }
        }
    }

    fn source(&self, key: &FlowKey, barred: bool, decision: &Decision) -> TraceStep {
        let (mac, port) = (key.smac(), PortId(key.in_port()));
        let Some(segment) = decision.segment else {
            return step(TraceStage::Source, mac.to_string());
        };
        let holder = self.fdb.station(self.now, segment, mac);
        if barred {
            let text = match holder.filter(|s| s.pinned) {
                Some(s) => {
                    let owner = self.names.port(s.port);
                    format!("{mac} is a static address of {owner}, which is up")
                }
                None => format!("{mac} belongs to the ports that list it, which are up"),
            };
            return end(TraceStage::Source, DropReason::SpoofedSource, text);
        }
        let known = |s: &crate::learning::Station| {
            if s.pinned {
                "is a static address here".to_owned()
            } else {
                format!("is known here, last seen {} ago", time(s.age))
            }
        };
        let what = match self.fdb.preview(self.now, segment, mac, port) {
            LearnPreview::Known => holder.as_ref().map(known).unwrap_or_default(),
            _ if decision.learn.is_none() => "is new, and would not be learned".to_owned(),
            LearnPreview::New => "is new, and would be learned".to_owned(),
            LearnPreview::Moves { from } => {
                format!(
                    "is known behind {}, and would move here",
                    self.names.port(from)
                )
            }
            LearnPreview::Refused(Refusal::PortFull) => {
                "would not be learned: its port has too many addresses".to_owned()
            }
            LearnPreview::Refused(Refusal::TableFull) => {
                "would not be learned: there are too many addresses".to_owned()
            }
            LearnPreview::Refused(Refusal::Damped) => {
                let holder = holder.map_or_else(String::new, |s| self.names.port(s.port));
                format!("is known behind {holder}, and would stay there: it moved too often")
            }
            LearnPreview::Refused(Refusal::Pinned) => "would not be learned".to_owned(),
        };
        step(TraceStage::Source, format!("{mac} {what}"))
    }

    fn lists(&self, asked: &ListEvaluation) -> TraceStep {
        let rule = asked.ruling.rule();
        let ruling = TraceRuling {
            direction: asked.direction.as_str().to_owned(),
            ports: vec![self.names.port(asked.port)],
            lists: asked.lists.iter().map(|list| list.to_string()).collect(),
            verdict: verdict(asked.ruling.verdict).to_owned(),
            list: rule.map(|rule| rule.list.to_string()),
            rule: rule.map(|rule| rule.name.to_string()),
        };
        TraceStep {
            drop: asked.ruling.drop_reason().map(|why| why.name().to_owned()),
            text: ruling_text(&ruling, &asked.ruling),
            ruling: Some(ruling),
            ..step(TraceStage::Policy, String::new())
        }
    }

    /// Adds a receiver to the step of others with the same lists and the same verdict; returns
    /// whether it fits.
    fn joins(&self, last: &mut TraceStep, asked: &ListEvaluation) -> bool {
        let next = self.lists(asked);
        let (Some(old), Some(new)) = (&mut last.ruling, &next.ruling) else {
            return false;
        };
        let as_old = TraceRuling {
            ports: old.ports.clone(),
            ..new.clone()
        };
        if as_old != *old || asked.direction == Direction::FromGuest {
            return false;
        }
        old.ports.extend(new.ports.iter().cloned());
        last.text = ruling_text(old, &asked.ruling);
        true
    }

    fn station(&self, key: &FlowKey, found: Destination, decision: &Decision) -> TraceStep {
        let mac = key.dmac();
        let behind = |port: PortId| {
            let station = decision
                .segment
                .and_then(|s| self.fdb.station(self.now, s, mac));
            let seen = station
                .filter(|s| !s.pinned)
                .map(|s| format!(", last seen {} ago", time(s.age)));
            let port = self.names.port(port);
            let text = format!("{mac} is behind {port}{}", seen.unwrap_or_default());
            (text, Some(port))
        };
        let why = DropReason::Reflection;
        let (text, port) = match found {
            Destination::Group(MacAddr::BROADCAST) => ("broadcast".to_owned(), None),
            Destination::Group(_) => (format!("{mac} is a group"), None),
            Destination::Unknown => (format!("{mac} is not known"), None),
            Destination::Behind(member) => behind(member.port),
            Destination::Left(port) => {
                let (text, _) = behind(port);
                (format!("{text}, which has left the segment"), None)
            }
            Destination::Itself => {
                let text = format!("{mac} is the sender itself");
                return end(TraceStage::Station, why, text);
            }
            Destination::Reflected => {
                let (text, port) = behind(PortId(key.in_port()));
                let text = format!("{text}: the port that the frame comes from");
                return TraceStep {
                    port,
                    ..end(TraceStage::Station, why, text)
                };
            }
        };
        TraceStep {
            port,
            ..step(TraceStage::Station, text)
        }
    }

    /// Returns the outcome of a frame.
    pub(crate) fn outcome(&self, key: &FlowKey, decision: &Decision) -> TraceOutcome {
        let (action, receivers) = match decision.action {
            Action::Drop(why) => return dropped(why),
            Action::Unicast { port, tag } => (TraceAction::Deliver, vec![self.receiver(port, tag)]),
            Action::Flood { segment, .. } => {
                let members = self.program.flood(segment, PortId(key.in_port()));
                let excluded: Vec<PortId> = decision.excluded().collect();
                let desired = members.filter(|member| !excluded.contains(&member.port));
                let all = desired.map(|member| self.receiver(member.port, member.tag));
                (TraceAction::Flood, all.collect())
            }
        };
        if receivers.is_empty() {
            return dropped(DropReason::NoReceiver);
        }
        TraceOutcome {
            action,
            text: outcome_text(action, &receivers),
            reason: None,
            receivers,
        }
    }

    /// Returns the step and the outcome of a neighbour request that the switch answers: `target` is
    /// at `owner`, behind `port`.
    pub(crate) fn answered(
        &self,
        key: &FlowKey,
        target: IpAddr,
        (port, owner): (PortId, MacAddr),
    ) -> (TraceStep, TraceOutcome) {
        let name = self.names.port(port);
        let requester = self.receiver(PortId(key.in_port()), key.vlan().filter(|vid| *vid != 0));
        let text = format!(
            "{target} is at {owner} behind {name} by port security: neighbour suppression answers"
        );
        let outcome = TraceOutcome {
            action: TraceAction::Answer,
            text: format!(
                "answered to {} alone: {target} is at {owner}",
                requester.port
            ),
            reason: Some(DropReason::NeighbourReply.name().to_owned()),
            receivers: vec![requester],
        };
        let step = TraceStep {
            port: Some(name),
            ..step(TraceStage::Station, text)
        };
        (step, outcome)
    }

    fn receiver(&self, port: PortId, vlan: Option<u16>) -> TraceReceiver {
        TraceReceiver {
            port: self.names.port(port),
            vlan,
            state: (self.states)(port),
        }
    }
}

fn step_unfiltered() -> TraceStep {
    step(
        TraceStage::Policy,
        "no access lists apply in this segment".to_owned(),
    )
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Drop => "drop",
        Verdict::Reject => "reject",
        Verdict::Stateful => "allow-stateful",
    }
}

/// Returns a text like `from vm1: allowed by rule ssh of list web-in (lists: web-in, all)`.
fn ruling_text(described: &TraceRuling, ruling: &Ruling) -> String {
    let way = match described.direction.as_str() {
        "from-guest" => "from",
        _ => "to",
    };
    let done = done(ruling.verdict);
    let by = match &ruling.by {
        By::Default => "by default, no rule matches".to_owned(),
        By::Unparseable => "as its headers cannot be parsed".to_owned(),
        By::Rule(rule) => format!("by rule {} of list {}", rule.name, rule.list),
        By::Invalid(rule) => format!(
            "as it opens no connection; rule {} of list {} would allow one",
            rule.name, rule.list
        ),
    };
    let lists = match described.lists.as_slice() {
        [] => "no lists".to_owned(),
        lists => format!("lists: {}", list(lists)),
    };
    format!("{way} {}: {done} {by} ({lists})", list(&described.ports))
}

fn outcome_text(action: TraceAction, receivers: &[TraceReceiver]) -> String {
    let one = |receiver: &TraceReceiver| {
        let tagged = receiver.vlan.map(|vid| format!(" with VLAN {vid}"));
        let down = (receiver.state != PortState::Up)
            .then(|| format!(" (which is {}: dropped there)", receiver.state.as_str()));
        let port = &receiver.port;
        format!(
            "{port}{}{}",
            tagged.unwrap_or_default(),
            down.unwrap_or_default()
        )
    };
    let to: Vec<String> = receivers.iter().map(one).collect();
    match action {
        TraceAction::Flood => format!("flooded to {}", list(&to)),
        _ => format!("to {}", list(&to)),
    }
}
