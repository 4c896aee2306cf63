//! Models that are refused, with place and reason; and warnings.

use testkit::table::rows;

use super::*;

/// Returns the error message of a model.
fn refused(text: &str) -> String {
    let error = try_compile(text).expect_err("a model that is refused");
    error.to_string()
}

/// Returns the error message of a rule of the list `l`.
fn refused_rule(rule: &str) -> String {
    refused(&format!(
        "{LIST}\n[[acl.rule]]\nname = \"r\"\naction = \"drop\"\n{rule}"
    ))
}

#[test]
fn rules_are_refused_with_field_and_reason() {
    let cases = rows(
        r#"
        source = ["10.0.0.1/8"]
          | source: "10.0.0.1/8" has bits behind the prefix; the network is "10.0.0.0/8"
        source = ["10.0.0.0/33"] | source: "10.0.0.0/33": the prefix has at most 32 bits
        source = ["2001:db8::/129"] | source: "2001:db8::/129": the prefix has at most 128 bits
        source = ["2001:db8::1/64"] | the network is "2001:db8::/64"
        destination = ["10.0.0"] | destination: expected an address or a prefix
        destination = ["10.0.0.0/+8"] | destination: expected an address or a prefix
        source = ["@missing"] | source: there is no address_set "missing"
        source_mac = "52:54" | source_mac: expected an address like
        source_mac = "52:54:00:00:00:01/ff:ff:00:00:00:00"
          | source_mac: "52:54:00:00:00:01/ff:ff:00:00:00:00" has bits that its mask leaves out
        ether_type = "0x05ff" | ether_type: expected "ipv4"
        ether_type = "0x+800" | ether_type: expected "ipv4"
        vlan = 4095 | vlan: expected a VLAN from 1 to 4094, or 0 for none, found 4095
        vlan = -1 | vlan: expected a VLAN
        protocol = "sctp" | protocol: expected "tcp"
        destination_ports = [80] | destination_ports: ports need the protocol "tcp" or "udp"
        protocol = "icmp"\nsource_ports = [80] | source_ports: ports need the protocol
        protocol = "tcp"\nsource_ports = [65536] | source_ports: expected a port from 0 to 65535
        protocol = "tcp"\nsource_ports = [-1] | source_ports: expected a port from 0 to 65535
        protocol = "tcp"\nsource_ports = ["90-80"] | source_ports: the range "90-80" is empty
        protocol = "tcp"\nsource_ports = ["80-"] | source_ports: expected a port
        protocol = "udp"\ntcp_flags = "syn/syn" | tcp_flags: flags need the protocol "tcp"
        protocol = "tcp"\ntcp_flags = "syn" | tcp_flags: expected flags like
        protocol = "tcp"\ntcp_flags = "syn/" | tcp_flags: expected flags like
        protocol = "tcp"\ntcp_flags = "syn/ack"
          | tcp_flags: "syn/ack" sets a flag that it does not look at
        protocol = "tcp"\nicmp_type = 8
          | icmp_type: a type or code needs the protocol "icmp" or "icmpv6"
        protocol = "icmp"\nicmp_code = 0 | icmp_code: a code needs a type
        protocol = "tcp"\nfragment = "later"\nsource_ports = [1]
          | source_ports: later fragments have no transport header
        protocol = "tcp"\nfragment = "later"\ntcp_flags = "/syn"
          | tcp_flags: later fragments have no transport header
        ether_type = "arp"\nprotocol = "tcp" | ether_type: the rule can match nothing
        source = ["10.0.0.0/8"]\ndestination = ["2001:db8::/32"]
          | ether_type: the rule can match nothing
        source = ["10.0.0.0/8"]\nprotocol = "icmpv6" | ether_type: the rule can match nothing
        peer_ports = ["vm1"] | peer_ports: the receiver is not known yet
        peer_groups = ["web"] | peer_groups: the receiver is not known yet
        log = { per_second = 0 } | log.per_second: expected a limit of at least one line a second
    "#,
    );
    for [rule, why] in &cases {
        let error = refused_rule(rule);
        let place = "acl \"l\", rule \"r\": ";
        assert!(
            error.starts_with(place) && error.contains(why),
            "{rule}: {error}"
        );
    }
}

#[test]
fn stateful_rules_are_refused_where_there_can_be_no_table() {
    let rule = |name: &str, priority: u32, action: &str| {
        format!("[[acl.rule]]\nname = '{name}'\npriority = {priority}\naction = '{action}'\n")
    };
    let with = |rules: &[String]| try_compile(&(LIST.to_owned() + &rules.concat()));
    let others = [rule("a", 3, "allow"), rule("b", 2, "drop")];
    let rules = with(&others).unwrap().rules;
    assert_eq!(rules.refuse_stateful("4 TiB"), Ok(()));
    let [first, second] = [
        rule("c", 0, "allow-stateful"),
        rule("d", 1, "allow-stateful"),
    ];
    let all = [&others[..], &[first, second]].concat();
    let idle = "[[acl]]\nname = 'l'\ndirection = 'to-guest'\n".to_owned() + &all.concat();
    let rules = try_compile(&idle).unwrap().rules;
    assert_eq!(rules.refuse_stateful("4 TiB"), Ok(()), "nothing asks it");
    let error = with(&all).unwrap().rules.refuse_stateful("it needs 4 TiB");
    assert_eq!(
        error.unwrap_err().to_string(),
        "acl \"l\", rule \"d\": action: \"allow-stateful\" needs the table of connections, which \
         there cannot be: it needs 4 TiB"
    );
}

#[test]
fn names_are_checked() {
    let cases = rows(
        r#"
        [[acl]]\nname = "a b"\ndirection = "to-guest" | acl "a b": name: expected a name
        [[acl]]\nname = "a"\ndirection = "to-guest"\nsegments = ["x"]
          | acl "a": segments: there is no segment "x"
        [[acl]]\nname = "a"\ndirection = "to-guest"\ngroups = ["x"]
          | acl "a": groups: there is no group "x"
        [[acl]]\nname = "a"\ndirection = "to-guest"\nports = ["x"]
          | acl "a": ports: there is no port "x"
        [[acl]]\nname = "a"\ndirection = "to-guest"\nports = ["vm1", "vm1"]
          | acl "a": ports: "vm1" is there twice
        [[group]]\nname = "g"\nports = ["x"] | group "g": ports: there is no port "x"
        [[group]]\nname = "g"\nports = ["vm1", "vm2", "vm1"]
          | group "g": ports: "vm1" is there twice
        [[group]]\nname = "g"\nports = []\n[[group]]\nname = "g"\nports = []
          | group "g": name: "g" is there twice
        [[address_set]]\nname = "s"\naddresses = ["10.0.0.1/24"]
          | address_set "s": addresses: "10.0.0.1/24" has bits
        [[address_set]]\nname = "s"\naddresses = []\n[[address_set]]\nname = "s"\naddresses = []
          | address_set "s": name: "s" is there twice
        [[acl_default]]\nsegment = "x" | acl_default "x": segment: there is no segment "x"
        [[acl_default]]\nsegment = "lan"\n[[acl_default]]\nsegment = "lan"
          | acl_default "lan": segment: "lan" is there twice
    "#,
    );
    for [text, why] in &cases {
        let error = refused(text);
        assert!(error.starts_with(why), "{text}: {error}");
    }
    let twice = format!("{LIST}\n{}{}", rule("r", ""), rule("r", "vlan = 1"));
    assert_eq!(
        refused(&twice),
        "acl \"l\", rule \"r\": name: \"r\" is there twice"
    );
    let lists = format!("{LIST}\n{LIST}");
    assert_eq!(refused(&lists), "acl \"l\": name: \"l\" is there twice");
}

#[test]
fn unknown_keys_are_refused() {
    for text in [
        "[[acl]]\nname = \"l\"\ndirection = \"to-guest\"\ncolour = 1",
        "colour = 1",
    ] {
        assert!(toml::from_str::<AccessModel>(text).is_err(), "{text}");
    }
    assert!(
        toml::from_str::<AccessModel>(&format!("{LIST}\n{}", rule("r", "colour = 1"))).is_err()
    );
}

/// A rule that drops.
fn rule(name: &str, rest: &str) -> String {
    format!("[[acl.rule]]\nname = \"{name}\"\naction = \"drop\"\n{rest}\n")
}

fn allow(name: &str, rest: &str) -> String {
    rule(name, rest).replace("\"drop\"", "\"allow\"")
}

fn warnings(rules: &str) -> Vec<String> {
    let compiled = try_compile(&format!("{LIST}\n{rules}")).expect("a model");
    compiled
        .shadowed
        .iter()
        .map(ShadowedRule::to_string)
        .collect()
}

#[test]
fn shadowed_rules_are_reported_with_the_one_before() {
    let wide = rule("wide", "source = [\"10.0.0.0/8\"]\nprotocol = \"tcp\"");
    let narrow = allow(
        "narrow",
        "source = [\"10.1.0.0/16\"]\nprotocol = \"tcp\"\ndestination_ports = [\"80-90\"]",
    );
    let shadowed = ["acl \"l\", rule \"narrow\" is never reached: \"wide\" comes first"];
    assert_eq!(warnings(&format!("{wide}{narrow}")), shadowed);
    assert!(warnings(&format!("{narrow}{wide}")).is_empty());
    assert!(warnings(&format!("{wide}{narrow}priority = 1")).is_empty());
    let other = narrow.replace("10.1", "11.1");
    assert!(warnings(&format!("{wide}{other}")).is_empty());
    let whole = rule(
        "whole",
        "source = [\"0.0.0.0/1\", \"128.0.0.0/1\"]\nprotocol = \"tcp\"",
    );
    let any = allow(
        "any",
        "ether_type = \"ipv4\"\nprotocol = \"tcp\"\ndestination_ports = [\"0-65535\"]",
    );
    assert_eq!(
        warnings(&format!("{whole}{any}")).len(),
        1,
        "two halves are the whole"
    );
    // The other way round, later fragments of the rest get to the drop.
    assert!(warnings(&format!("{any}{whole}")).is_empty());
}

#[test]
fn rules_that_contradict_each_other_are_refused() {
    let both = format!(
        "{LIST}\n{}{}",
        rule("a", "vlan = 1"),
        allow("b", "vlan = 1")
    );
    let why = "acl \"l\", rule \"b\": action: acl \"l\", rule \"a\" matches the same \
               with the same priority and does something else";
    assert_eq!(refused(&both), why);
    assert!(try_compile(&format!("{both}priority = 1")).is_ok());
    let same = format!("{LIST}\n{}{}", rule("a", "vlan = 1"), rule("b", "vlan = 1"));
    assert_eq!(try_compile(&same).unwrap().shadowed.len(), 1);
}

#[test]
fn groups_with_a_port_in_common_need_priorities_that_say_who_is_first() {
    let list = |name, group, action, priority| {
        format!(
            "[[acl]]\nname = \"{name}\"\ndirection = \"to-guest\"\ngroups = [\"{group}\"]\n\
             [[acl.rule]]\nname = \"r\"\naction = \"{action}\"\npriority = {priority}\n"
        )
    };
    let with = |second: String| format!("{}{}{second}", GROUPS, list("a", "web", "allow", 5));
    let why = "acl \"b\", rule \"r\": priority: port \"vm2\" is in another group, too, \
               and acl \"a\", rule \"r\" has the same priority";
    assert!(refused(&with(list("b", "db", "drop", 5))).starts_with(why));
    assert!(try_compile(&with(list("b", "db", "drop", 6))).is_ok());
    assert!(try_compile(&with(list("b", "db", "allow", 5))).is_ok());
    assert!(try_compile(&with(list("b", "apart", "drop", 5))).is_ok());

    let rules = try_compile(&with(list("b", "db", "drop", 6)))
        .unwrap()
        .rules;
    let put = |priority| Change::Put {
        list: "b".to_owned(),
        rule: Box::new(RuleSpec {
            name: "r".to_owned(),
            priority,
            ..RuleSpec::default()
        }),
    };
    assert!(rules.change(&put(7)).is_ok());
    let error = rules.change(&put(5)).unwrap_err().to_string();
    assert!(error.starts_with(why), "{error}");
}

/// So many lists, attached by turns like this.
fn many_lists(count: usize, attached: &[&str]) -> String {
    let list = |(n, to): (usize, &&str)| {
        format!("[[acl]]\nname = \"l{n}\"\ndirection = \"to-guest\"\n{to}\n")
    };
    let lists: String = attached
        .iter()
        .cycle()
        .take(count)
        .enumerate()
        .map(list)
        .collect();
    format!("{GROUPS}{lists}")
}

#[test]
fn lists_are_not_more_than_can_be_evaluated_and_compared() {
    let (web, db) = ("groups = [\"web\"]", "groups = [\"db\"]");
    for attached in [
        &[web, db][..],
        &["ports = [\"vm2\"]"],
        &["segments = [\"lan\"]"],
    ] {
        assert!(
            try_compile(&many_lists(256, attached)).is_ok(),
            "{attached:?}"
        );
        let error = refused(&many_lists(257, attached));
        assert!(
            error.starts_with("acl \"l256\": name: expected at most 256 lists at a "),
            "{error}"
        );
    }
    // A pair of lists for each two of a group's elements would not fit into memory.
    let error = refused(&many_lists(20_000, &[web, db]));
    assert!(
        error.contains("expected at most 256 lists at a port"),
        "{error}"
    );
}

#[test]
fn a_change_is_refused_as_a_whole_model_would_be() {
    let rules = try_compile(&format!("{LIST}\n{}", rule("a", "vlan = 1")))
        .unwrap()
        .rules;
    let put = |list: &str, name: &str, action| Change::Put {
        list: list.to_owned(),
        rule: Box::new(RuleSpec {
            name: name.to_owned(),
            vlan: Some(1),
            action,
            ..RuleSpec::default()
        }),
    };
    let said = |change: &Change| rules.change(change).unwrap_err().to_string();
    assert_eq!(
        said(&put("x", "b", RuleAction::Drop)),
        "acl \"x\": name: there is no acl \"x\""
    );
    assert!(said(&put("l", "b", RuleAction::Allow)).contains("matches the same"));
    assert!(said(&put("l", "", RuleAction::Drop)).contains("expected a name"));
    let shadowed = rules
        .change(&put("l", "b", RuleAction::Drop))
        .unwrap()
        .shadowed;
    assert_eq!(shadowed.len(), 1);
    assert!(
        rules.change(&put("l", "a", RuleAction::Allow)).is_ok(),
        "in its own place"
    );
    let remove = |rule: &str| Change::Remove {
        list: "l".to_owned(),
        rule: rule.to_owned(),
    };
    assert_eq!(
        said(&remove("b")),
        "acl \"l\": name: there is no rule \"b\""
    );
    assert!(rules.change(&remove("a")).unwrap().rules.is_empty());
    assert_eq!(rules.len(), 1, "the old ones stay");
}
