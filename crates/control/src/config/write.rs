//! Writes a desired state as a configuration file.
//!
//! Every type is destructured field by field: a new field that is missing here does not compile.

mod value;

use api::v1::{
    AccessListSpec, AccessModel, AddressSet, CoalescingSpec, DEFAULT_SEGMENT, DesiredState,
    HelpersSpec, LimitsSpec, MetricsSpec, MirrorSpec, PortKind, PortSecuritySpec, PortSpec,
    RuleSpec, SegmentDefault, SegmentSpec, StaticEntry, SwitchSpec, UplinkDriver,
};

use self::value::Value;

/// Returns the configuration file of a checked state. [`parse`](super::parse) reads it as the same
/// state, once both are [normalised](crate::desired::normalise). Defaults are left out, and paths
/// stay as they are written.
#[must_use]
pub fn export(state: &DesiredState) -> String {
    let DesiredState {
        switch,
        metrics,
        segments,
        ports,
        access,
        mirrors,
        fdb,
    } = state;
    let mut file = File::default();
    file.switch(switch);
    file.metrics(metrics);
    for (at, segment) in segments.iter().enumerate() {
        file.segment(segment, at == 0);
    }
    ports.iter().for_each(|port| file.port(port));
    file.access(access);
    mirrors.iter().for_each(|mirror| file.mirror(mirror));
    fdb.iter().for_each(|entry| file.static_entry(entry));
    file.text
}

/// A file that is being written.
#[derive(Default)]
struct File {
    text: String,
}

impl File {
    /// Starts a table.
    fn table(&mut self, header: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(header);
        self.text.push('\n');
    }

    /// Starts a table, unless it has no keys.
    fn table_of(&mut self, header: &str, keys: impl FnOnce(&mut Self)) {
        let before = self.text.len();
        self.table(header);
        let begun = self.text.len();
        keys(self);
        if self.text.len() == begun {
            self.text.truncate(before);
        }
    }

    fn key(&mut self, key: &str, value: &(impl Value + ?Sized)) {
        let value = value.toml();
        self.text.push_str(&format!("{key} = {value}\n"));
    }

    /// Writes an optional key.
    fn given(&mut self, key: &str, value: Option<&(impl Value + ?Sized)>) {
        if let Some(value) = value {
            self.key(key, value);
        }
    }

    /// Writes a key, unless it has its default.
    fn unless<T: Value + PartialEq>(&mut self, key: &str, value: &T, usual: &T) {
        self.given(key, Some(value).filter(|value| *value != usual));
    }

    /// Writes an optional list.
    fn list<T: Value>(&mut self, key: &str, items: &[T]) {
        self.given(key, Some(items).filter(|items| !items.is_empty()));
    }

    fn switch(&mut self, switch: &SwitchSpec) {
        let SwitchSpec {
            name,
            poll,
            workers,
            coalescing,
            guest_state,
            helpers,
            socket_dirs,
        } = switch;
        let usual = SwitchSpec::default();
        self.table_of("[switch]", |file| {
            file.unless("name", name, &usual.name);
            file.unless("workers", workers, &usual.workers);
            file.unless("guest_state", guest_state, &usual.guest_state);
            file.unless("poll", poll, &usual.poll);
            file.list("socket_dirs", socket_dirs);
        });
        self.coalescing(coalescing);
        self.helpers(helpers);
    }

    fn coalescing(&mut self, coalescing: &CoalescingSpec) {
        let CoalescingSpec {
            enabled,
            period_us,
            frames,
        } = coalescing;
        let usual = CoalescingSpec::default();
        self.table_of("[switch.coalescing]", |file| {
            file.unless("enabled", enabled, &usual.enabled);
            file.unless("period_us", period_us, &usual.period_us);
            file.unless("frames", frames, &usual.frames);
        });
    }

    fn helpers(&mut self, helpers: &HelpersSpec) {
        let HelpersSpec {
            enabled,
            backlog,
            hysteresis_us,
            cores,
        } = helpers;
        let usual = HelpersSpec::default();
        self.table_of("[switch.helpers]", |file| {
            file.unless("enabled", enabled, &usual.enabled);
            file.unless("backlog", backlog, &usual.backlog);
            file.unless("hysteresis_us", hysteresis_us, &usual.hysteresis_us);
            file.list("cores", cores);
        });
    }

    fn metrics(&mut self, metrics: &MetricsSpec) {
        let MetricsSpec { listen } = metrics;
        self.table_of("[metrics]", |file| file.given("listen", listen.as_ref()));
    }

    /// Writes a segment. The default segment is the first one even if it is not listed.
    fn segment(&mut self, segment: &SegmentSpec, first: bool) {
        let SegmentSpec {
            name,
            vlan,
            neighbour_suppression,
        } = segment;
        let says_nothing = vlan.is_none() && !neighbour_suppression;
        if first && name == DEFAULT_SEGMENT && says_nothing {
            return;
        }
        self.table("[[segment]]");
        self.key("name", name);
        self.given("vlan", vlan.as_ref());
        self.unless("neighbour_suppression", neighbour_suppression, &false);
    }

    fn port(&mut self, port: &PortSpec) {
        let PortSpec {
            name,
            kind,
            admin_state,
            socket,
            role,
            user,
            group,
            mode,
            peer_user,
            queues,
            segment,
            trunk,
            mac,
            mtu,
            weight,
            driver,
            interface,
            address,
            netns,
            vcpu_threads,
            port_security,
            limits,
        } = port;
        let usual = PortSpec::new("", *kind);
        self.table("[[port]]");
        self.key("name", name);
        self.key("kind", kind);
        self.unless("admin_state", admin_state, &usual.admin_state);
        self.unless("socket", socket, &usual.socket);
        self.unless("role", role, &usual.role);
        self.given("user", user.as_ref());
        self.given("group", group.as_ref());
        self.given("mode", mode.as_ref());
        self.given("peer_user", peer_user.as_ref());
        // The default name of a TAP port's interface is the port's.
        let own = *kind == PortKind::Tap && interface.as_ref() == Some(name);
        self.given("interface", interface.as_ref().filter(|_| !own));
        let usual_driver = UplinkDriver::default();
        self.given("driver", driver.as_ref().filter(|d| **d != usual_driver));
        self.given("address", address.as_ref());
        self.given("netns", netns.as_ref());
        self.unless("queues", queues, &usual.queues);
        self.given(
            "segment",
            segment.as_ref().filter(|s| *s != DEFAULT_SEGMENT),
        );
        self.given("trunk", trunk.as_ref());
        self.given("mac", mac.as_ref());
        self.unless("weight", weight, &usual.weight);
        self.given("mtu", mtu.as_ref());
        self.given("vcpu_threads", vcpu_threads.as_ref());
        self.port_security(port_security);
        self.limits(limits);
    }

    fn port_security(&mut self, port_security: &PortSecuritySpec) {
        let PortSecuritySpec {
            macs,
            addresses,
            dhcp_server,
            router,
        } = port_security;
        self.table_of("[port.port_security]", |file| {
            file.given("macs", macs.as_ref());
            file.given("addresses", addresses.as_ref());
            file.given("dhcp_server", dhcp_server.as_ref());
            file.given("router", router.as_ref());
        });
    }

    fn limits(&mut self, limits: &LimitsSpec) {
        let LimitsSpec {
            from_guest,
            to_guest,
            broadcast,
            multicast,
            unknown_unicast,
        } = limits;
        self.table_of("[port.limits]", |file| {
            file.given("from_guest", from_guest.as_ref());
            file.given("to_guest", to_guest.as_ref());
            file.given("broadcast", broadcast.as_ref());
            file.given("multicast", multicast.as_ref());
            file.given("unknown_unicast", unknown_unicast.as_ref());
        });
    }

    fn access(&mut self, access: &AccessModel) {
        let AccessModel {
            address_sets,
            groups,
            defaults,
            lists,
        } = access;
        for AddressSet { name, addresses } in address_sets.iter() {
            self.table("[[address_set]]");
            self.key("name", name);
            self.key("addresses", addresses);
        }
        for api::v1::Group { name, ports } in groups {
            self.table("[[group]]");
            self.key("name", name);
            self.key("ports", ports);
        }
        for default in defaults {
            self.acl_default(default);
        }
        lists.iter().for_each(|list| self.acl(list));
    }

    fn acl_default(&mut self, default: &SegmentDefault) {
        let SegmentDefault {
            segment,
            from_guest,
            to_guest,
        } = default;
        self.table("[[acl_default]]");
        self.key("segment", segment);
        self.unless("from_guest", from_guest, &Default::default());
        self.unless("to_guest", to_guest, &Default::default());
    }

    fn acl(&mut self, list: &AccessListSpec) {
        let AccessListSpec {
            name,
            direction,
            segments,
            groups,
            ports,
            rules,
        } = list;
        self.table("[[acl]]");
        self.key("name", name);
        self.key("direction", direction);
        self.list("segments", segments);
        self.list("groups", groups);
        self.list("ports", ports);
        rules.iter().for_each(|rule| self.rule(rule));
    }

    fn rule(&mut self, rule: &RuleSpec) {
        let RuleSpec {
            name,
            priority,
            action,
            log,
            source_mac,
            destination_mac,
            ether_type,
            vlan,
            source,
            destination,
            peer_ports,
            peer_groups,
            protocol,
            source_ports,
            destination_ports,
            tcp_flags,
            icmp_type,
            icmp_code,
            fragment,
        } = rule;
        self.table("[[acl.rule]]");
        self.key("name", name);
        self.unless("priority", priority, &0);
        self.key("action", action);
        self.given("source_mac", source_mac.as_ref());
        self.given("destination_mac", destination_mac.as_ref());
        self.given("ether_type", ether_type.as_ref());
        self.given("vlan", vlan.as_ref());
        self.list("source", source);
        self.list("destination", destination);
        self.list("peer_ports", peer_ports);
        self.list("peer_groups", peer_groups);
        self.given("protocol", protocol.as_ref());
        self.list("source_ports", source_ports);
        self.list("destination_ports", destination_ports);
        self.given("tcp_flags", tcp_flags.as_ref());
        self.given("icmp_type", icmp_type.as_ref());
        self.given("icmp_code", icmp_code.as_ref());
        self.given("fragment", fragment.as_ref());
        self.given("log", log.as_ref());
    }

    fn static_entry(&mut self, entry: &StaticEntry) {
        let StaticEntry { segment, mac, port } = entry;
        self.table("[[fdb]]");
        self.unless("segment", segment, &DEFAULT_SEGMENT.to_owned());
        self.key("mac", mac);
        self.key("port", port);
    }

    fn mirror(&mut self, mirror: &MirrorSpec) {
        let MirrorSpec {
            name,
            to,
            ports,
            direction,
            segments,
            filter,
        } = mirror;
        self.table("[[mirror]]");
        self.key("name", name);
        self.key("to", to);
        self.list("ports", ports);
        self.unless("direction", direction, &Default::default());
        self.list("segments", segments);
        self.given("filter", filter.as_ref());
    }
}
