//! Connections: what commits them, what passes with them, what ends them.

use std::collections::BTreeMap;

use wire::EtherType;
use wire::flow::{Ct, CtState, KeyState};

use super::*;
use crate::acl::{AccessModel, By, Names, Rules, Verdict};
use crate::connection::{Standing, WithFarPort, class_of, mark_of};
use crate::port_security::{Macs, PortSecurity};
use crate::{
    Action, ClassOrigin, ConnectionChange, DECISION_MASK, Decision, DropReason, DscpClasses, Step,
    decide, explain,
};

const REPLY: CtState = CtState::REPLY;
const KNOWN: CtState = CtState::ESTABLISHED;
const STALE: CtState = KNOWN.union(CtState::STALE);

fn commit(mark: u8, reply: bool) -> ConnectionChange {
    ConnectionChange::Commit { mark, reply }
}

/// Ports 1 and 2 in `lan`, 3 in `dmz`, trunk 4 with both; the rules of `text`.
fn with(text: &str) -> Program {
    let access: AccessModel = toml::from_str(text).expect("a model");
    let model = model();
    let names = Names {
        segments: &model.segments,
        ports: &(1..=5).map(|id| (format!("p{id}"), PortId(id))).collect(),
        classes: &BTreeMap::from([("voice".to_owned(), 2)]),
    };
    let rules = Rules::compile(&access, names).expect("sound lists").rules;
    program().with_rules(rules, 7)
}

/// A list with these rules: name, action and the rest of each.
fn list(name: &str, direction: &str, attached: &str, rules: &[[&str; 3]]) -> String {
    let head = format!("[[acl]]\nname = '{name}'\ndirection = '{direction}'\n{attached}\n");
    let rules = rules.iter().map(|[name, action, rest]| {
        format!("[[acl.rule]]\nname = '{name}'\naction = '{action}'\n{rest}\n")
    });
    head + &rules.collect::<String>()
}

/// The lists of port 2: it may be asked for HTTP.
fn web(action: &str) -> String {
    let http = "protocol = 'tcp'\ndestination_ports = [80]\ntcp_flags = 'syn/syn,ack'";
    list(
        "in",
        "to-guest",
        "ports = ['p2']",
        &[["http", action, http], ["rest", "drop", ""]],
    ) + &list(
        "out",
        "from-guest",
        "ports = ['p2']",
        &[["none", "drop", ""]],
    )
}

/// Stations 1 to 4 are at these ports of `lan`.
fn table() -> Table {
    let learned = [1, 2, 4].map(|n| ((LAN, mac(n)), PortId(n.into())));
    Table {
        learned: learned.into(),
        ..Table::default()
    }
}

/// TCP from a station to another, by port 1000 of the former and 80 of the latter.
fn http(from: u8, to: u8, state: CtState) -> FlowKey {
    let address = |n: u8| 0x0a00_0000 | u128::from(n);
    let state = if state.is_empty() {
        state
    } else {
        state | CtState::TRACKED
    };
    key(from.into(), None, mac(from), mac(to))
        .with_ethertype(EtherType::IPV4)
        .with_src_ip(address(from))
        .with_dst_ip(address(to))
        .with_ip_proto(6)
        .with_l4_ports(1000, 80)
        .with_l4_flags(0x02)
        .with_ct(Ct::new(state, 0))
}

/// The answer from station `from`, with ACK.
fn answer(from: u8, to: u8, state: CtState) -> FlowKey {
    let key = http(from, to, state).with_l4_ports(80, 1000);
    key.with_l4_flags(0x10)
}

fn outcome(decision: &Decision) -> (Action, ConnectionChange) {
    (decision.action, decision.connection)
}

fn dropped(reason: DropReason) -> (Action, ConnectionChange) {
    (Action::Drop(reason), ConnectionChange::None)
}

#[test]
fn a_connection_is_committed_if_both_sides_allow_it_and_one_by_a_stateful_rule() {
    let actions = ["allow", "allow-stateful", "drop"];
    for from in actions {
        for to in actions {
            let text = list("a", "from-guest", "ports = ['p1']", &[["r", from, ""]])
                + &list("b", "to-guest", "ports = ['p2']", &[["r", to, ""]]);
            let decision = decide(&with(&text), &table(), &http(1, 2, CtState::NEW));
            let expected = match [from, to] {
                [from, to] if from == "drop" || to == "drop" => dropped(DropReason::AclDenied),
                ["allow", "allow"] => (Action::to(2), ConnectionChange::None),
                _ => (Action::to(2), commit(0, false)),
            };
            assert_eq!(outcome(&decision), expected, "{from} {to}");
        }
    }
}

#[test]
fn frames_of_a_known_connection_ask_no_rule() {
    let program = with(&web("allow-stateful"));
    let mask = DECISION_MASK.with_ct();
    for (key, to) in [
        (http(1, 2, KNOWN), 2),
        (answer(2, 1, KNOWN | REPLY), 1),
        (answer(2, 1, CtState::RELATED), 1),
    ] {
        let decision = decide(&program, &table(), &key);
        assert_eq!(outcome(&decision), (Action::to(to), ConnectionChange::None));
        assert_eq!((decision.mask, decision.rules()), (mask, vec![]));
        assert_eq!(decision.learn, Some((LAN, key.smac())));
        // Nothing above Ethernet is needed.
        let low = FlowKey::from_words(std::array::from_fn(|word| match word {
            0..3 => key.words()[word],
            _ => 0,
        }));
        assert_eq!(decide(&program, &table(), &low), decision);
    }
    assert_eq!(
        outcome(&decide(&program, &table(), &answer(2, 1, CtState::NEW))),
        dropped(DropReason::AclDenied)
    );
}

#[test]
fn a_known_connection_goes_to_its_far_port_and_is_never_flooded() {
    let program = with(&web("allow-stateful"));
    let key = answer(2, 3, KNOWN | REPLY);
    let unknown = dropped(DropReason::ConnectionInvalid);
    assert_eq!(outcome(&decide(&program, &table(), &key)), unknown);
    let group = key.with_dmac(MacAddr::BROADCAST);
    assert_eq!(outcome(&decide(&program, &table(), &group)), unknown);
    for (far, expected) in [
        (Some(PortId(1)), (Action::to(1), ConnectionChange::None)),
        (Some(PortId(3)), unknown),
        (None, unknown),
    ] {
        let known = table();
        let fdb = WithFarPort::new(&known, far);
        assert_eq!(outcome(&decide(&program, &fdb, &key)), expected, "{far:?}");
        assert!(!fdb.is_for_one(&key));
        let learned = answer(2, 4, KNOWN | REPLY);
        let fdb = WithFarPort::new(&known, far);
        assert_eq!(decide(&program, &fdb, &learned).action, Action::to(4));
        let stale = answer(2, 3, STALE | REPLY);
        assert!(!matches!(
            decide(&program, &fdb, &stale).action,
            Action::Flood { .. }
        ));
        assert_eq!(fdb.is_for_one(&stale), far.is_some());
        assert!(!fdb.is_for_one(&key));
    }
}

#[test]
fn port_security_holds_for_known_connections() {
    let security = PortSecurity {
        macs: Macs::Only(vec![mac(9).0]),
        ..PortSecurity::default()
    };
    let program = with(&web("allow-stateful"));
    let guarded = program
        .clone()
        .with_port_security([(PortId(1), security)].into_iter().collect());
    let key = http(1, 2, KNOWN);
    let spoofed = decide(&guarded, &table(), &key);
    assert_eq!(outcome(&spoofed), dropped(DropReason::SpoofedMac));
    let mut table = table();
    table.barred.insert((LAN, mac(1), PortId(1)));
    let barred = decide(&program, &table, &key);
    assert_eq!(outcome(&barred), dropped(DropReason::SpoofedSource));
}

#[test]
fn stateful_rules_do_not_match_frames_of_no_connection() {
    let all = |rest: [&'static str; 2]| {
        let rules = [
            ["web", "allow-stateful", "protocol = 'tcp'"],
            ["rest", rest[0], rest[1]],
        ];
        with(&list("in", "to-guest", "ports = ['p2']", &rules))
    };
    let invalid = http(1, 2, CtState::INVALID);
    let decided = |program: &Program| decide(program, &table(), &invalid);
    let allowed = decided(&all(["allow", ""]));
    assert_eq!(outcome(&allowed), (Action::to(2), ConnectionChange::None));
    assert_eq!(&*allowed.to_guest[0].ruling.rule().unwrap().name, "rest");
    for rest in [["drop", ""], ["reject", ""], ["allow", "protocol = 'udp'"]] {
        let denied = decided(&with(
            &(list(
                "in",
                "to-guest",
                "ports = ['p2']",
                &[
                    ["web", "allow-stateful", "protocol = 'tcp'"],
                    ["rest", rest[0], rest[1]],
                ],
            ) + "[[acl_default]]\nsegment = 'lan'\nto_guest = 'deny'\n"),
        ));
        assert_eq!(outcome(&denied), dropped(DropReason::ConnectionInvalid));
        let by = &denied.to_guest[0].ruling.by;
        assert!(
            matches!(by, By::Invalid(rule) if &*rule.name == "web"),
            "{by:?}"
        );
        assert_eq!(denied.rules(), [], "no rule counts it");
    }
    // Without another rule the segment's default allows.
    let default = decided(&all(["drop", "protocol = 'udp'"]));
    assert_eq!(default.action, Action::to(2));
    // A rule that comes first denies as ever.
    let first = [
        ["no", "reject", ""],
        ["web", "allow-stateful", "protocol = 'tcp'"],
    ];
    let first = with(&list("in", "to-guest", "ports = ['p2']", &first));
    assert_eq!(outcome(&decided(&first)), dropped(DropReason::AclRejected));
}

#[test]
fn untracked_frames_pass_stateful_rules_and_commit_nothing() {
    let rules = [["all", "allow-stateful", ""]];
    let text = list("in", "to-guest", "ports = ['p2']", &rules)
        + "[[acl_default]]\nsegment = 'lan'\nto_guest = 'deny'\n";
    let program = with(&text);
    let arp = key(1, None, mac(1), mac(2)).with_ethertype(EtherType::ARP);
    let group = http(1, 2, CtState::empty()).with_dmac(MacAddr::BROADCAST);
    for (key, action) in [(arp, Action::to(2)), (group, Action::flood(LAN))] {
        let decision = decide(&program, &table(), &key);
        assert_eq!(outcome(&decision), (action, ConnectionChange::None));
        // Tracked frames do not share its flow.
        assert!(decision.mask.covers(&DECISION_MASK.with_ct()));
    }
}

#[test]
fn without_stateful_rules_the_state_does_not_count() {
    let program = with(&web("allow"));
    for state in [CtState::NEW, KNOWN, CtState::INVALID, STALE | REPLY] {
        for key in [http(1, 2, state), answer(2, 1, state)] {
            let plain = key.with_ct(Ct::UNTRACKED);
            let decision = decide(&program, &table(), &key);
            assert_eq!(decision, decide(&program, &table(), &plain));
            assert_eq!(decision.mask.words()[0] >> 16 & 0xffff, 0);
        }
    }
}

#[test]
fn a_stale_connection_is_decided_as_its_first_frame_would_be() {
    let frames = [
        (http(1, 2, STALE).with_l4_flags(0x10), 2, false),
        (answer(2, 1, STALE | REPLY), 1, true),
        (answer(2, 1, KNOWN | REPLY | CtState::MOVED), 1, true),
    ];
    for (frame, to, reply) in frames {
        let decided = |text: &str| decide(&with(text), &table(), &frame);
        let stands = decided(&web("allow-stateful"));
        assert_eq!(outcome(&stands), (Action::to(to), commit(0, reply)));
        let names = stands.rulings().filter_map(|ruling| ruling.rule());
        let names: Vec<_> = names.map(|rule| &*rule.name).collect();
        assert_eq!(names, ["http"], "the rules of the first frame");
        let ended = decided(&web("drop").replace("'http'", "'http2'").replace(
            "[[acl.rule]]\nname = 'none'",
            "[[acl.rule]]\nname = 'x'\naction = 'allow-stateful'\nprotocol = 'udp'\n\
             [[acl.rule]]\nname = 'none'",
        ));
        let denied = Action::Drop(DropReason::AclDenied);
        assert_eq!(outcome(&ended), (denied, ConnectionChange::Deny));
        // A list that allows the frame itself lets it pass, without a connection.
        let plain = list("in", "to-guest", "ports = ['p2']", &[["all", "allow", ""]])
            + &list(
                "out",
                "from-guest",
                "ports = ['p2']",
                &[
                    ["ack", "allow", "protocol = 'tcp'"],
                    ["udp", "allow-stateful", ""],
                ],
            );
        let passes = decided(&plain);
        assert_eq!(outcome(&passes), (Action::to(to), ConnectionChange::None));
    }
}

#[test]
fn flags_of_a_stale_connection_do_not_count() {
    let program = with(&web("allow-stateful"));
    let first = decide(&program, &table(), &http(1, 2, STALE));
    for flags in [0x10, 0x18, 0x11, 0x04] {
        let key = http(1, 2, STALE).with_l4_flags(flags);
        let decision = decide(&program, &table(), &key);
        assert_eq!(decision.connection, commit(0, false));
        assert_eq!(decision.mask, first.mask);
    }
}

#[test]
fn a_reply_from_a_trunk_is_decided_with_the_tag_of_its_receiver() {
    let text = list(
        "in",
        "to-guest",
        "ports = ['p4']",
        &[
            ["tagged", "allow-stateful", "vlan = 0"],
            ["rest", "drop", ""],
        ],
    );
    let program = with(&text);
    let mut table = Table::default();
    table.learned.insert((DMZ, mac(3)), PortId(3));
    table.learned.insert((DMZ, mac(4)), PortId(4));
    // Port 3 has sent without a tag; the reply comes from the trunk with VLAN 30.
    let reply = answer(4, 3, STALE | REPLY).with_vlan(Some(30));
    let decision = decide(&program, &table, &reply);
    assert_eq!(outcome(&decision), (Action::to(3), commit(0, true)));
}

#[test]
fn the_end_of_a_connection_needs_both_its_ports_and_a_whole_frame() {
    let program = with(&web("allow-stateful").replace("[80]", "[81]"));
    let denied = Action::Drop(DropReason::AclDenied);
    let known = answer(2, 1, STALE | REPLY);
    let ended = (denied, ConnectionChange::Deny);
    assert_eq!(outcome(&decide(&program, &table(), &known)), ended);
    let later = known.with_state(KeyState::FRAGMENT | KeyState::LATER_FRAGMENT);
    let lost = answer(2, 3, STALE | REPLY);
    let error = answer(2, 1, CtState::RELATED | CtState::STALE);
    for key in [later, lost, error] {
        let kept = (denied, ConnectionChange::None);
        assert_eq!(outcome(&decide(&program, &table(), &key)), kept, "{key:?}");
    }
    let itself = http(1, 1, STALE);
    let reflected = decide(&program, &table(), &itself);
    assert_eq!(outcome(&reflected), dropped(DropReason::Reflection));
}

#[test]
fn a_connection_to_an_unknown_station_is_committed_by_a_flood() {
    let program = with(&web("allow-stateful"));
    let decision = decide(&program, &Table::default(), &http(1, 2, CtState::NEW));
    assert_eq!(outcome(&decision), (Action::flood(LAN), commit(0, false)));
    let other = http(1, 2, CtState::NEW).with_l4_ports(1000, 22);
    let decision = decide(&program, &Table::default(), &other);
    assert_eq!(
        outcome(&decision),
        (Action::flood(LAN), ConnectionChange::None)
    );
    assert_eq!(decision.excluded().collect::<Vec<_>>(), [PortId(2)]);
    // Until the station answers, rules decide about its frames and the answer.
    let unbound = KNOWN | CtState::MOVED;
    let repeated = decide(&program, &Table::default(), &http(1, 2, unbound));
    let flooded = (Action::flood(LAN), commit(0, false));
    assert_eq!(outcome(&repeated), flooded);
    let first = answer(2, 1, unbound | REPLY);
    let bound = decide(&program, &table(), &first);
    assert_eq!(outcome(&bound), (Action::to(1), commit(0, true)));
    let other = decide(&program, &table(), &first.with_in_port(4));
    let passes = (Action::to(1), ConnectionChange::None);
    assert_eq!(outcome(&other), passes, "not of the connection");
}

#[test]
fn a_frame_that_may_be_a_reply_is_one_where_its_own_rules_deny_it() {
    let program = with(&web("allow-stateful"));
    let state = CtState::NEW | REPLY;
    let decision = decide(&program, &table(), &answer(2, 1, state));
    assert_eq!(outcome(&decision), (Action::to(1), commit(0, true)));
    let opens = decide(&program, &table(), &http(1, 2, state));
    assert_eq!(outcome(&opens), (Action::to(2), commit(0, false)));
    let neither = answer(2, 1, state).with_l4_ports(81, 1000);
    let neither = decide(&program, &table(), &neither);
    assert_eq!(outcome(&neither), dropped(DropReason::AclDenied));
    // Towards the guest only what the guest may have opened.
    let scan = answer(1, 2, state).with_l4_ports(443, 2000);
    let scan = decide(&program, &table(), &scan);
    assert_eq!(outcome(&scan), dropped(DropReason::AclDenied));
}

#[test]
fn the_class_of_a_connection_is_in_its_mark() {
    for class in [None, Some(0), Some(7)] {
        assert_eq!(class_of(mark_of(class)), class);
    }
    let http_with = "protocol = 'tcp'\nclass = 'voice'";
    let text = list(
        "in",
        "to-guest",
        "ports = ['p2']",
        &[
            ["http", "allow-stateful", http_with],
            ["rest", "allow-stateful", ""],
        ],
    );
    let dscp = DscpClasses::new([(26, 1)], [PortId(1)]);
    let program = with(&text).with_dscp_classes(dscp);
    let decided = |key: FlowKey| {
        let decision = decide(&program, &table(), &key.with_tos(26 << 2));
        (decision.class, decision.connection)
    };
    let mark = mark_of(Some(2));
    assert_eq!(decided(http(1, 2, CtState::NEW)), (2, commit(mark, false)));
    assert_eq!(decided(answer(2, 1, STALE | REPLY)).1, commit(mark, true));
    // The class of a DSCP is that of its frame alone.
    let udp = http(1, 2, CtState::NEW).with_ip_proto(17);
    assert_eq!(decided(udp), (1, commit(0, false)));
    let known = |from, to, mark| {
        let ct = Ct::new(CtState::TRACKED | KNOWN, mark);
        decided(http(from, to, KNOWN).with_ct(ct)).0
    };
    assert_eq!(
        [known(1, 2, mark), known(1, 2, 0), known(2, 1, mark)],
        [2, 1, 2]
    );
    let key = http(2, 1, KNOWN).with_ct(Ct::new(CtState::TRACKED | KNOWN, mark));
    let (_, steps) = explain(&program, &table(), &key);
    assert!(steps.contains(&Step::Class(2, ClassOrigin::Connection)));
}

#[test]
fn segments_are_tracked_where_a_stateful_rule_may_be_asked() {
    let ports = |program: &Program| {
        program
            .tracked_ports()
            .map(|port| port.0)
            .collect::<Vec<_>>()
    };
    let plain = with(&web("allow"));
    assert_eq!((plain.tracked.len(), ports(&plain)), (0, vec![]));
    let program = with(&web("allow-stateful")).without_rules();
    assert_eq!(
        [LAN, DMZ, LAB].map(|s| program.tracks(s)),
        [Some(7), None, None]
    );
    assert_eq!(ports(&program), [1, 2, 4]);
    // A list of a trunk is asked in all its segments, one of a segment in that.
    let rules = [["r", "allow-stateful", ""]];
    let trunk = with(&list("l", "from-guest", "ports = ['p4']", &rules));
    assert_eq!([LAN, DMZ, LAB].map(|s| trunk.tracks(s)), [Some(7); 3]);
    let segment = with(&list("l", "to-guest", "segments = ['lab']", &rules));
    assert_eq!(ports(&segment), [4]);
    let nowhere = with(&list("l", "to-guest", "", &rules));
    assert_eq!(ports(&nowhere), [0; 0]);
    assert!(!nowhere.is_tracked(PortId(99)));
}

#[test]
fn a_rules_epoch_changes_with_the_rules_of_its_segment_alone() {
    let dmz = |action| list("d", "to-guest", "segments = ['dmz']", &[["r", action, ""]]);
    let text = |http, d| web(http) + &dmz(d);
    let old = with(&text("allow-stateful", "allow-stateful"));
    let epochs = |program: &Program, epoch| {
        let next = program.with_rules(program.rules().clone(), epoch);
        let next = next.succeeding(&old);
        [LAN, DMZ].map(|segment| next.tracks(segment))
    };
    assert_eq!(epochs(&old, 8), [Some(7), Some(7)]);
    let port = text("allow-stateful", "allow-stateful").replace("[80]", "[81]");
    assert_eq!(epochs(&with(&port), 8), [Some(8), Some(7)]);
    let no_state = with(&text("allow-stateful", "allow"));
    assert_eq!(epochs(&no_state, 8), [Some(7), None]);
    // The number of a later program may be that of the former rules.
    assert_eq!(epochs(&with(&port), 7 + (1 << 16)), [Some(8), Some(7)]);
    // Port security is not asked about connections, and outdates flows only.
    let security = PortSecurity {
        no_router: true,
        ..PortSecurity::default()
    };
    let guarded = old
        .clone()
        .with_port_security([(PortId(1), security)].into_iter().collect());
    assert_eq!(epochs(&guarded, 8), [Some(7), Some(7)]);
    assert_eq!(guarded.outdated(&old).ports, [PortId(1)]);
}

#[test]
fn a_new_member_leaves_the_connections_of_others() {
    let old = with(&web("allow-stateful"));
    let mut model = model();
    model.ports.insert(PortId(6), PortMode::Access(LAN));
    let new = Program::compile(&model, 8).unwrap();
    let new = new.with_rules(old.rules().clone(), 8).succeeding(&old);
    assert_eq!(new.tracks(LAN), Some(7));
}

/// It may come back with other rules, and its connections are still there.
#[test]
fn a_member_that_leaves_for_another_segment_has_connections_decided_anew() {
    let old = with(&web("allow-stateful"));
    let epoch = |change: fn(&mut Model)| {
        let mut model = model();
        change(&mut model);
        let new = Program::compile(&model, 8).unwrap();
        let new = new.with_rules(old.rules().clone(), 8).succeeding(&old);
        new.tracks(LAN)
    };
    let elsewhere = |model: &mut Model| {
        model.ports.insert(PortId(1), PortMode::Access(DMZ));
    };
    assert_eq!(epoch(elsewhere), Some(8));
    // The connections of one that is removed are removed with it.
    let removed = |model: &mut Model| {
        model.ports.remove(&PortId(1));
    };
    assert_eq!(epoch(removed), Some(7));
}

/// The opener may have any port with rules that would have let it open the connection.
#[test]
fn a_flood_may_be_an_answer_to_a_station_that_is_not_known() {
    let may_be = CtState::NEW | REPLY;
    let text = web("allow-stateful").replace("from-guest", "to-guest");
    let out = |action| {
        let http = "protocol = 'tcp'\ndestination_ports = [80]";
        let all = [["http", action, http], ["none", "drop", ""]];
        list("out2", "from-guest", "ports = ['p2']", &all)
    };
    let excluded = |program: &Program, key: &FlowKey| {
        let decision = decide(program, &table(), key);
        assert_eq!(decision.connection, ConnectionChange::None);
        let ports: Vec<_> = decision.excluded().map(|port| port.0).collect();
        matches!(decision.action, Action::Flood { .. }).then_some(ports)
    };
    let program = with(&(text.clone() + &out("allow-stateful")));
    let silent = |state| answer(1, 9, state);
    assert_eq!(excluded(&program, &silent(may_be)), Some(vec![]));
    assert_eq!(excluded(&program, &silent(CtState::NEW)), Some(vec![2]));
    let other = silent(may_be).with_l4_ports(81, 1000);
    assert_eq!(excluded(&program, &other), Some(vec![2]));
    // By the lists of both sides, one of them with state.
    let plain = with(&(text.clone() + &out("allow")));
    assert_eq!(excluded(&plain, &silent(may_be)), Some(vec![2]));
    // If its sender may open nothing, ports get it for this reason alone.
    let mute = [["none", "drop", ""]];
    let mute = list("mute", "from-guest", "ports = ['p1']", &mute);
    let program = with(&(text + &out("allow-stateful") + &mute));
    assert_eq!(excluded(&program, &silent(may_be)), Some(vec![4]));
    assert_eq!(excluded(&program, &silent(CtState::NEW)), None);
}

#[test]
fn steps_say_how_the_connection_counts() {
    let program = with(&web("allow-stateful"));
    let steps = |key: &FlowKey| {
        let (decision, steps) = explain(&program, &table(), key);
        assert_eq!(decision, decide(&program, &table(), key));
        let verdicts = steps.iter().filter_map(|step| match step {
            Step::Lists(lists) => Some((lists.port.0, lists.ruling.verdict)),
            _ => None,
        });
        (steps[2].clone(), verdicts.collect::<Vec<_>>())
    };
    let new = Standing::New { maybe_reply: false };
    assert_eq!(
        steps(&http(1, 2, CtState::NEW)),
        (
            Step::Connection(new),
            vec![(1, Verdict::Allow), (2, Verdict::Stateful)]
        )
    );
    assert_eq!(
        steps(&http(1, 2, KNOWN)),
        (Step::Connection(Standing::Known), vec![])
    );
    let (first, verdicts) = steps(&answer(2, 1, STALE | REPLY));
    assert_eq!(first, Step::Connection(Standing::Anew { reply: true }));
    assert_eq!(verdicts, [(1, Verdict::Allow), (2, Verdict::Stateful)]);
    let (first, _) = steps(&http(1, 2, CtState::INVALID));
    assert_eq!(first, Step::Connection(Standing::Invalid));
    let (first, _) = steps(&http(1, 2, CtState::empty()));
    assert_eq!(first, Step::Connection(Standing::Untracked));
}
