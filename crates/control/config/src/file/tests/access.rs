//! Tests of access lists in the file.

use api::v1::{AccessListSpec, Direction, RuleAction};
use testkit::table::rows;

use super::{PORT, check_all, read, wrong};

const LIST: &str = "[[acl]]\nname = \"in\"\ndirection = \"to-guest\"\nports = [\"vm1\"]\n";

#[test]
fn lists_are_read_and_their_rules_keep_their_order() {
    let text = format!(
        "{PORT}[[address_set]]\nname = \"office\"\naddresses = [\"10.9.0.0/16\"]\n\
         [[group]]\nname = \"web\"\nports = [\"vm1\"]\n\
         [[acl_default]]\nsegment = \"default\"\nto_guest = \"deny\"\n\
         {LIST}groups = [\"web\"]\n\
         [[acl.rule]]\nname = \"http\"\npriority = 10\naction = \"allow\"\nprotocol = \
         \"tcp\"\ndestination_ports = [80, \"8000-8010\"]\n\
         [[acl.rule]]\nname = \"ssh\"\naction = \"reject\"\nsource = [\"@office\"]\nlog = {{ \
         per_second = 5 }}\n\
         [[acl]]\nname = \"out\"\ndirection = \"from-guest\"\n"
    );
    let access = read(&text).unwrap().access;
    let of = |list: &AccessListSpec| -> Vec<_> {
        list.rules
            .iter()
            .map(|r| (r.name.clone(), r.action))
            .collect()
    };
    let expected = [
        ("http".to_owned(), RuleAction::Allow),
        ("ssh".to_owned(), RuleAction::Reject),
    ];
    assert_eq!(of(&access.lists[0]), expected);
    assert_eq!(access.lists[1].direction, Direction::FromGuest);
    assert_eq!(access.groups[0].ports, ["vm1"]);
    assert_eq!(access.address_sets[0].addresses, ["10.9.0.0/16"]);
    assert_eq!(access.lists[0].rules[1].log.unwrap().per_second, 5);
}

#[test]
fn mirrors_are_read() {
    let text = format!(
        "{PORT}[[mirror]]\nname = \"m\"\nto = \"vm1\"\nsegments = [\"default\"]\nfilter = \"arp\"\n"
    );
    let mirrors = read(&text).unwrap().mirrors;
    assert_eq!(mirrors[0].segments, ["default"]);
    assert_eq!(mirrors[0].filter.as_deref(), Some("arp"));
    let line = |what: &str| wrong(&format!("{PORT}[[mirror]]\nname = \"m\"\n{what}\n"));
    let of = |line: String| line.split_once(": ").map(|(_, rest)| rest.to_owned());
    let expected = "mirror.to: expected the name of a port, found \"vm9\"";
    assert_eq!(of(line("to = \"vm9\"")).as_deref(), Some(expected));
    let expected = "mirror.filter: column 5: ";
    let got = of(line("to = \"vm1\"\nfilter = \"tcp prot 5\"")).unwrap();
    assert!(got.starts_with(expected), "{got}");
}

#[test]
fn what_is_wrong_has_its_line() {
    check_all(
        r#"
        acl = 5\n                                | 1: acl: expected tables [[acl]], found 5
        [[acl]]\nname = "in"\ndirection = "inward"\n
          | 3: acl.direction: expected "from-guest" or "to-guest", found "inward"
        [[group]]\nname = "g"\nports = ["vm9"]\n | 3: group.ports: there is no port "vm9"
        [[address_set]]\nname = "s"\naddresses = ["10.0.0.1/8"]\n
          | 3: address_set.addresses: "10.0.0.1/8" has bits behind the prefix; the network is
          .. "10.0.0.0/8"
        [[acl_default]]\nsegment = "red"\n       | 2: acl_default.segment: there is no segment "red"
    "#,
    );
    let rule = |line: &str| {
        wrong(&format!(
            "{PORT}{LIST}[[acl.rule]]\nname = \"r\"\naction = \"drop\"\n{line}\n"
        ))
    };
    assert_eq!(
        rule("source = [\"@all\"]"),
        "12: acl.rule.source: acl \"in\", rule \"r\": there is no address_set \"all\""
    );
    assert_eq!(
        rule("log = { per_second = 0 }"),
        "12: acl.rule.log.per_second: acl \"in\", rule \"r\": expected a limit of at least one \
         line a second, found 0"
    );
    assert_eq!(
        rule("colour = 1").split(", peer").next(),
        Some(
            "12: acl.rule.colour: expected one of the keys name, priority, action, log, \
             source_mac, destination_mac, ether_type, vlan, source, destination"
        )
    );
    let typed = rows(
        r#"
        protocol = 6           | protocol: expected a string, found 6
        icmp_type = "echo-request"
          | icmp_type: expected an integer from 0 to 255, found "echo-request"
        icmp_type = 300        | icmp_type: expected an integer from 0 to 255, found 300
        priority = -1          | priority: expected an integer from 0 to 4294967295, found -1
        destination_ports = 80 | destination_ports: expected a list, like [...], found 80
        log = true             | log: expected a table, like { ... }, found true
        source_ports = [1.5]
          | source_ports: expected a port from 0 to 65535 or a range like "8000-8010", found 1.5
        log = { per_second = "5" }
          | log.per_second: expected an integer from 0 to 4294967295, found "5"
        source = [5]           | source: expected a string, found 5
    "#,
    );
    for [line, expected] in &typed {
        assert_eq!(rule(line), format!("12: acl.rule.{expected}"), "{line}");
    }
}

/// The API's document has the key `rules`. In the file it would give a list without rules, which
/// allows everything.
#[test]
fn rules_are_called_rule_and_are_not_passed_over() {
    let text = format!("{PORT}{LIST}[[acl.rules]]\nname = \"r\"\naction = \"drop\"\n");
    assert_eq!(
        wrong(&text),
        "9: acl.rules: expected tables [[acl.rule]], found the unknown key \"rules\""
    );
}
