//! The access lists of a flood, as Lasthop and as its peers take them: the complete example of the
//! users' documentation, whose last rule drops without a log.

use std::fmt::Write as _;

/// The example, for the victim alone; the guest that is asked is outside, as the uplink is.
pub(super) const EXAMPLE: &str = r#"
[[address_set]]
name = "office"
addresses = ["10.9.0.0/16", "2001:db8:9::/48"]

[[group]]
name = "web"
ports = ["victim0"]

[[group]]
name = "outside"
ports = ["up0", "near0"]

[[acl_default]]
segment = "default"
to_guest = "deny"

[[acl]]
name = "outside-in"
direction = "to-guest"
groups = ["outside"]

[[acl.rule]]
name = "everything"
action = "allow"

[[acl]]
name = "web-in"
direction = "to-guest"
groups = ["web"]

[[acl.rule]]
name = "arp"
action = "allow"
ether_type = "arp"

[[acl.rule]]
name = "icmpv6"
action = "allow"
protocol = "icmpv6"

[[acl.rule]]
name = "icmp"
action = "allow"
protocol = "icmp"

[[acl.rule]]
name = "tcp-answers"
action = "allow"
protocol = "tcp"
tcp_flags = "ack/ack"

[[acl.rule]]
name = "dns-answers"
action = "allow"
protocol = "udp"
source_ports = [53]

[[acl.rule]]
name = "http"
action = "allow"
protocol = "tcp"
destination_ports = [80, 443, "8000-8010"]

[[acl.rule]]
name = "ssh"
action = "allow"
source = ["@office"]
protocol = "tcp"
destination_ports = [22]

[[acl.rule]]
name = "others"
action = "drop"
"#;

/// The example with one more rule, before all others of its list.
pub(super) fn example_with(rule: &str) -> String {
    let list = "groups = [\"web\"]\n";
    EXAMPLE.replace(list, &format!("{list}\n[[acl.rule]]\n{rule}"))
}

/// Networks of the example's office.
const OFFICE: [(&str, &str); 2] = [("ip", "10.9.0.0/16"), ("ipv6", "2001:db8:9::/48")];

/// For `nft -f`: a chain where frames of the interface come in.
pub(super) fn nftables(interface: &str, victim: &str) -> String {
    format!(
        "table netdev flood {{\n\
         chain web {{\n\
         ether type arp accept\n\
         meta l4proto ipv6-icmp accept\n\
         ip protocol icmp accept\n\
         tcp flags & ack == ack accept\n\
         udp sport 53 accept\n\
         tcp dport {{ 80, 443, 8000-8010 }} accept\n\
         ip saddr {} tcp dport 22 accept\n\
         ip6 saddr {} tcp dport 22 accept\n\
         drop\n\
         }}\n\
         chain in {{\n\
         type filter hook ingress device \"{interface}\" priority -500; policy accept;\n\
         ether daddr {victim} jump web\n\
         }}\n\
         }}\n",
        OFFICE[0].1, OFFICE[1].1
    )
}

/// Arguments of `tc`: filters of the same rules, in their order.
pub(super) fn flower(interface: &str, victim: &str) -> Vec<String> {
    let mut filters = vec![
        ("arp", String::new()),
        ("ipv6", "ip_proto icmpv6".to_owned()),
        ("ip", "ip_proto icmp".to_owned()),
    ];
    for (protocol, office) in OFFICE {
        let rules = [
            "ip_proto tcp tcp_flags 0x10/0x10".to_owned(),
            "ip_proto udp src_port 53".to_owned(),
            "ip_proto tcp dst_port 80".to_owned(),
            "ip_proto tcp dst_port 443".to_owned(),
            "ip_proto tcp dst_port 8000-8010".to_owned(),
            format!("ip_proto tcp src_ip {office} dst_port 22"),
        ];
        filters.extend(rules.map(|rule| (protocol, rule)));
    }
    let mut commands = vec![format!("qdisc add dev {interface} ingress")];
    let add = format!("filter add dev {interface} ingress");
    for (number, (protocol, rule)) in filters.iter().enumerate() {
        commands.push(format!(
            "{add} pref {} protocol {protocol} flower dst_mac {victim} {rule} action pass",
            number + 1
        ));
    }
    let last = filters.len() + 1;
    commands.push(format!(
        "{add} pref {last} protocol all flower dst_mac {victim} action drop"
    ));
    commands
}

/// For `ovs-ofctl add-flows`, beside the flow that forwards all else as a bridge does.
pub(super) fn openflow(victim: &str) -> String {
    let mut text = String::new();
    let mut allow = |rule: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "priority=100,dl_dst={victim},{rule},actions=NORMAL");
    };
    ["arp", "icmp6", "icmp"].into_iter().for_each(&mut allow);
    for (version, office) in [
        ("", "nw_src=10.9.0.0/16"),
        ("6", "ipv6_src=2001:db8:9::/48"),
    ] {
        allow(&format!("tcp{version},tcp_flags=+ack"));
        allow(&format!("udp{version},tp_src=53"));
        // 8000 to 8010 are the fewest masks that cover them.
        for port in ["80", "443", "0x1f40/0xfff8", "0x1f48/0xfffe", "8010"] {
            allow(&format!("tcp{version},tp_dst={port}"));
        }
        allow(&format!("tcp{version},{office},tp_dst=22"));
    }
    text + &format!("priority=10,dl_dst={victim},actions=drop\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_added_before_the_others() {
        let text = example_with("name = \"new\"\naction = \"allow\"\n");
        let [new, arp] = ["name = \"new\"", "name = \"arp\""].map(|name| text.find(name));
        assert!(new.is_some() && new < arp);
        assert_eq!(text.matches("[[acl.rule]]").count(), 10);
    }

    #[test]
    fn each_peer_has_all_rules_and_drops_last() {
        let mac = "02:00:00:00:00:02";
        let flower = flower("up0", mac);
        assert_eq!(flower.len(), 1 + 3 + 2 * 6 + 1);
        assert!(
            flower
                .last()
                .is_some_and(|last| last.ends_with("action drop"))
        );
        assert_eq!(openflow(mac).lines().count(), 3 + 2 * 8 + 1);
        assert!(nftables("up0", mac).contains("ether daddr 02:00:00:00:00:02 jump web"));
    }
}
