//! Cost of a scan of all ports, and of many connections to an open one.

use std::collections::HashSet;

use policy::acl::{Otherwise, PortText, RuleAction, RuleSpec, SegmentDefault};
use policy::{Program, decide};
use wire::flow::{FlowKey, FlowMask};

use crate::generate::Header;
use crate::{KnownReceiver, compile, key, model_of, program};

/// A server behind three open ports, everything else closed; and one net that may do everything.
fn rules() -> Program {
    let open = |name: &str, ports: &[i64]| RuleSpec {
        name: name.to_owned(),
        action: RuleAction::Allow,
        protocol: Some("tcp".to_owned()),
        destination: vec!["10.0.0.2".to_owned()],
        destination_ports: ports.iter().map(|port| PortText::Number(*port)).collect(),
        ..RuleSpec::default()
    };
    let office = RuleSpec {
        name: "office".to_owned(),
        priority: 10,
        action: RuleAction::Allow,
        source: vec!["10.9.0.0/16".to_owned()],
        ..RuleSpec::default()
    };
    let mut model = model_of(vec![open("web", &[80, 443]), open("ssh", &[22]), office]);
    model.defaults.push(SegmentDefault {
        segment: "lan".to_owned(),
        from_guest: Otherwise::Deny,
        to_guest: Otherwise::Allow,
    });
    program(compile(&model).0)
}

fn flows(program: &Program, headers: impl Iterator<Item = Header>) -> (usize, usize) {
    let mut flows: HashSet<(FlowMask, FlowKey)> = HashSet::new();
    for header in headers {
        let key = key(&header);
        let decision = decide(program, &KnownReceiver, &key);
        flows.insert((decision.mask, key.masked(&decision.mask)));
    }
    let masks: HashSet<_> = flows.iter().map(|(mask, _)| mask).collect();
    (flows.len(), masks.len())
}

pub(crate) fn print() {
    let program = rules();
    let header = |source, port| Header {
        source,
        destination: 0x0a00_0002,
        protocol: 6,
        ports: (40_000 | port & 7, port),
    };
    let show = |what, (flows, masks)| println!("{what}: {flows} flows of {masks} masks");
    let scan = (0..=u16::MAX).map(|port| header(0x0a00_0007, port));
    show(
        "a scan of all ports of a server with three open ones",
        flows(&program, scan),
    );
    let many = (0..50_000).map(|n| header(0x0a09_0000 + n, (n % 50_000) as u16));
    show(
        "50000 connections from a net that may do everything",
        flows(&program, many),
    );
    let clients = (0..50_000).map(|n| header(0xc633_6400 + n, 443));
    show("50000 clients of the open port", flows(&program, clients));
}
