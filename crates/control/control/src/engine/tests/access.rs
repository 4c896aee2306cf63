//! Access lists: refused as a whole, or published together with the outdated flows.

use std::sync::Arc;

use api::v1::{AccessModel, CountsFilter, Problem, RuleSpec};
use ipc::records::{Answer, Upcall};
use ipc::rules::RuleUse;
use policy::acl::{Names, RuleId};
use policy::{Action, DropReason, OutdatedFlows, PortId, SegmentId};
use tokio::sync::oneshot;
use wire::FlowKey;

use super::world::{World, asked, flood, key, port, to};
use crate::engine::Engine;
use crate::plan::Plan;
use config::desired::{AccessChange, Change};

const DENIED: Action = Action::Drop(DropReason::AclDenied);

/// Three ports in blue, one in red; MAC addresses 1 to 3 are learned.
fn world() -> (World, Engine) {
    let mut world = World::new(vec![
        port("vm0", "blue"),
        port("vm1", "blue"),
        port("vm2", "blue"),
        port("vm3", "red"),
    ]);
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    for (port, station) in [(0, 1), (1, 2), (2, 3)] {
        world.ask(&mut engine, key(port, station, 255));
    }
    (world, engine)
}

fn lists(json: &str) -> AccessModel {
    serde_json::from_str(json).unwrap()
}

/// `vm2` may receive nothing.
fn closed() -> AccessModel {
    lists(
        r#"{"lists": [{"name": "in", "direction": "to-guest", "ports": ["vm2"],
            "rules": [{"name": "all", "action": "drop"}]}]}"#,
    )
}

impl Engine {
    fn set_access(&mut self, access: AccessModel) -> Result<(), Problem> {
        let change = AccessChange::All(Box::new(access));
        self.try_change(&asked(Change::Access(change))).map(drop)
    }

    fn put_rule(&mut self, json: &str) -> Result<(), Problem> {
        let rule: RuleSpec = serde_json::from_str(json).unwrap();
        let change = AccessChange::PutRule("in".to_owned(), Box::new(rule));
        self.try_change(&asked(Change::Access(change))).map(drop)
    }
}

#[test]
fn denied_frames_are_dropped_and_only_their_flows_are_decided_again() {
    let (world, mut engine) = world();
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
    assert_eq!(world.frame(&mut engine, key(0, 1, 3)), to(2));
    engine.set_access(closed()).unwrap();
    let sent = world.switch().outdated.last().cloned().flatten();
    let outdated = OutdatedFlows {
        ports: vec![PortId(2)],
        segments: vec![SegmentId(1)],
    };
    assert_eq!(sent, Some(outdated));
    let cached = world.cached();
    assert_eq!(cached.len(), 1, "that between vm0 and vm1: {cached:?}");
    assert_eq!(world.ask(&mut engine, key(0, 1, 3)), DENIED);
    assert_eq!(world.ask(&mut engine, key(0, 1, 255)), flood(1));
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
    engine.set_access(AccessModel::default()).unwrap();
    assert_eq!(world.ask(&mut engine, key(0, 1, 3)), to(2));
}

#[test]
fn a_control_that_starts_anew_keeps_what_the_lists_have_decided() {
    let (mut world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(0, 1, 2));
    let flows = world.cached();
    let epoch = engine.forwarding.program.epoch();
    drop(engine);
    let mut engine = world.start().unwrap();
    assert_eq!(engine.forwarding.program.epoch(), epoch);
    assert_eq!(world.cached(), flows);
    assert_eq!(world.ask(&mut engine, key(0, 1, 3)), DENIED);
    assert_eq!(*engine.desired().state.access, closed());
}

#[test]
fn a_client_of_another_control_gets_a_missed_event() {
    let (mut world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    drop(engine);
    world.switch().program = policy::Program::default();
    world.start().unwrap();
    assert_eq!(world.switch().outdated.last(), Some(&None));
}

#[test]
fn wrong_lists_change_nothing() {
    let (world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    let desired = engine.desired();
    world.orders();
    for (access, field, detail) in [
        (
            r#"{"lists": [{"name": "a", "direction": "to-guest", "ports": ["vm9"]}]}"#,
            "access.lists[0].ports",
            "there is no port \"vm9\"",
        ),
        (
            r#"{"groups": [{"name": "g", "ports": []}, {"name": "g", "ports": []}]}"#,
            "access.groups[1].name",
            "\"g\" is there twice",
        ),
        (
            r#"{"lists": [{"name": "a", "direction": "to-guest"},
                {"name": "b", "direction": "to-guest", "rules": [{"name": "x", "action": "drop"},
                {"name": "y", "action": "drop", "source": ["10.0.0.1/33"]}]}]}"#,
            "access.lists[1].rules[1].source",
            "acl \"b\", rule \"y\": \"10.0.0.1/33\": the prefix has at most 32 bits",
        ),
    ] {
        let problem = engine.set_access(lists(access)).unwrap_err();
        assert_eq!(problem.status, 422, "{problem}");
        assert_eq!(
            (problem.field.as_deref(), problem.detail.as_str()),
            (Some(field), detail)
        );
    }
    assert_eq!(engine.desired(), desired);
    assert_eq!(world.orders(), [""; 0]);
    assert_eq!(world.ask(&mut engine, key(0, 1, 3)), DENIED);
}

#[test]
fn a_port_that_a_list_names_cannot_be_removed() {
    let (_world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    let problem = engine.remove_port("vm2").unwrap_err();
    assert_eq!((problem.status, &problem.field), (409, &None));
    let detail = "port `vm2` cannot be removed: access list `in` is attached to it; \
        change or remove that first";
    assert_eq!(problem.detail, detail);
    engine.remove_port("vm1").unwrap();
    engine.set_access(AccessModel::default()).unwrap();
    engine.remove_port("vm2").unwrap();
}

#[test]
fn a_rule_may_name_a_port_that_came_after_the_lists() {
    let (_world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    engine.add_port(port("vm4", "blue")).unwrap();
    let rule = r#"{"name": "new", "priority": 1, "action": "allow", "peer_ports": ["vm4"]}"#;
    engine.put_rule(rule).unwrap();
    let problem = engine.remove_port("vm4").unwrap_err();
    assert_eq!(problem.status, 409, "{problem}");
}

#[test]
fn one_changed_rule_is_as_if_all_were_compiled() {
    let (world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    engine
        .put_rule(
            r#"{"name": "one", "priority": 1, "action": "allow",
                "source_mac": "52:54:00:00:00:01"}"#,
        )
        .unwrap();
    assert_eq!(world.frame(&mut engine, key(1, 2, 3)), DENIED);
    let rules = engine.forwarding.program.rules().clone();
    let same = Arc::clone(&engine.desired().state.access);
    engine.set_access(AccessModel::default()).unwrap();
    engine.set_access((*same).clone()).unwrap();
    assert_eq!(*engine.forwarding.program.rules(), rules);
    let problem = engine
        .put_rule(r#"{"name": "bad", "action": "drop", "protocol": "x"}"#)
        .unwrap_err();
    assert_eq!(
        problem.field.as_deref(),
        Some("access.lists[0].rules[2].protocol")
    );
    assert_eq!(*engine.forwarding.program.rules(), rules);
}

#[test]
fn a_changed_rule_means_the_port_that_has_the_name_now() {
    let (world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    engine.remove_port("vm0").unwrap();
    engine.add_port(port("vm0", "blue")).unwrap();
    let rule = r#"{"name": "one", "priority": 1, "action": "allow", "peer_ports": ["vm0"]}"#;
    engine.put_rule(rule).unwrap();
    world.ask(&mut engine, key(4, 1, 255));
    world.ask(&mut engine, key(2, 3, 255));
    assert_eq!(world.ask(&mut engine, key(4, 1, 3)), to(2));
    let rules = engine.forwarding.program.rules().clone();
    let same = Arc::clone(&engine.desired().state.access);
    engine.set_access(AccessModel::default()).unwrap();
    engine.set_access((*same).clone()).unwrap();
    assert_eq!(*engine.forwarding.program.rules(), rules);
}

/// `vm2` is closed by lists that were compiled before it was created again, if it was: it has
/// another number then.
fn closed_ahead(is_made_anew: bool) -> Action {
    let (world, mut engine) = world();
    let change = AccessChange::All(Box::new(closed()));
    let request = asked(Change::Access(change));
    let plan = Plan::new(&engine.store.basis(), &request).unwrap();
    let mut at = 2;
    if is_made_anew {
        engine.remove_port("vm2").unwrap();
        engine.add_port(port("vm2", "blue")).unwrap();
        at = 4;
    }
    world.ask(&mut engine, key(at, 3, 255));
    assert_eq!(world.ask(&mut engine, key(0, 1, 3)), to(at));
    engine.change(&request, plan).unwrap();
    assert_eq!(world.ask(&mut engine, key(0, 1, 2)), to(1));
    world.ask(&mut engine, key(0, 1, 3))
}

#[test]
fn precompiled_lists_hold_for_the_current_ports() {
    assert_eq!(closed_ahead(false), DENIED);
    assert_eq!(closed_ahead(true), DENIED);
}

#[test]
fn a_plan_has_the_numbers_that_new_ports_will_have() {
    let (world, mut engine) = world();
    let mut new = engine.desired().state;
    new.ports.push(port("vm4", "blue"));
    let mut lists = closed();
    lists.lists[0].ports = vec!["vm4".to_owned()];
    new.access = Arc::new(lists);
    let request = asked(Change::State(Box::new(new)));
    let plan = Plan::new(&engine.store.basis(), &request).unwrap();
    engine.change(&request, plan.clone()).unwrap();
    let model = engine.target().model();
    let names = Names {
        segments: &model.segments,
        ports: &engine.store.saved.numbers.ports,
        classes: &engine.store.saved.numbers.classes,
    };
    assert!(plan.access.has_names(names), "it was compiled once");
    world.ask(&mut engine, key(4, 5, 255));
    assert_eq!(world.ask(&mut engine, key(0, 1, 5)), DENIED);
}

#[test]
fn wrong_lists_are_refused_before_they_reach_the_engine() {
    let (_world, engine) = world();
    let wrong = r#"{"lists": [{"name": "in", "direction": "to-guest", "ports": ["vm9"]}]}"#;
    let change = AccessChange::All(Box::new(lists(wrong)));
    let problem = Plan::new(&engine.store.basis(), &asked(Change::Access(change))).unwrap_err();
    assert_eq!(problem.field.as_deref(), Some("access.lists[0].ports"));
}

/// Requests the counters, and lets the engine reply.
fn counted(world: &World, engine: &mut Engine) -> Vec<(String, u64, u64)> {
    let (reply, mut answer) = oneshot::channel();
    engine.queue_rule_counts(reply);
    world.settle(engine);
    let counted = answer.try_recv().unwrap().unwrap();
    let document = counted.document(&CountsFilter::default()).unwrap();
    let rules = document.lists.into_iter().flat_map(|list| list.rules);
    rules
        .map(|rule| (rule.name, rule.packets, rule.bytes))
        .collect()
}

fn uses(rule: &str, packets: u64) -> RuleUse {
    RuleUse {
        rule: RuleId::of("in", rule),
        packets,
        bytes: 60 * packets,
        idle_ms: 5,
    }
}

#[test]
fn decisions_name_their_rules() {
    let (world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    let rules = |answer| match answer {
        Answer::Install { rules, .. } => rules,
        other => panic!("it is remembered, not {other:?}"),
    };
    let upcall = |key: FlowKey| Upcall {
        id: 7,
        key: *key.words(),
        frame_len: 60,
        headers: Vec::new(),
        connection: None,
    };
    let all = vec![RuleId::of("in", "all")];
    for (to, by) in [(3, all.clone()), (255, all), (2, vec![])] {
        let answer = world.ask_with(&mut engine, &upcall(key(0, 1, to)));
        assert_eq!(rules(answer), by, "to {to}");
    }
}

#[test]
fn counters_are_summed_and_outlive_control() {
    let (mut world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    assert_eq!(counted(&world, &mut engine), [("all".to_owned(), 0, 0)]);
    for (new, sum) in [(3, 3), (0, 3), (4, 7)] {
        world.switch().rules = vec![uses("all", new), uses("unknown", 1)];
        let expected = [("all".to_owned(), sum, 60 * sum)];
        assert_eq!(counted(&world, &mut engine), expected);
    }
    drop(engine);
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    assert_eq!(counted(&world, &mut engine), [("all".to_owned(), 7, 420)]);
    let facts = engine.facts().unwrap();
    let busiest: Vec<_> = facts.rules.busiest(5).collect();
    assert_eq!((busiest[0].0, busiest[0].1), ("in", "all"));
}

/// A client that arrives while a request is open gets the next reply.
#[test]
fn all_clients_get_the_counters_of_their_time() {
    let (world, mut engine) = world();
    engine.set_access(closed()).unwrap();
    let mut answers: Vec<_> = (0..40)
        .map(|_| {
            let (reply, answer) = oneshot::channel();
            engine.queue_rule_counts(reply);
            answer
        })
        .collect();
    world.settle(&mut engine);
    world.settle(&mut engine);
    for answer in &mut answers {
        answer.try_recv().unwrap().unwrap();
    }
}
