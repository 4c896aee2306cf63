//! The expected values of keys, where serde expects a type.

use crate::desired::user;
use crate::expect;
use crate::json::{ExpectedValue, KEYS, integer, of_port, row};

/// Keys with a meaning that API and file do not share, or for which the file has a text of its own.
const FILE_KEYS: &[ExpectedValue] = &[
    ("port.admin_state", None, expect::ADMIN_STATE),
    ("port.user", None, expect::USER),
    ("port.group", None, expect::GROUP),
    ("port.mode", None, expect::MODE),
    ("port.peer_user", None, expect::USER),
    ("port.segment", None, expect::SEGMENT),
    ("port.trunk", Some("a string"), expect::SEGMENT),
    ("port.interface", None, expect::INTERFACE),
    ("port.address", None, expect::ADDRESS),
    ("forward.listen", None, user::LISTEN),
    ("forward.to", None, user::TO),
    ("switch.socket_dirs", None, expect::SOCKET_DIRS),
    ("switch.forward_addresses", None, expect::FORWARD_ADDRESSES),
    ("port_security.macs", None, expect::ALLOWED_MACS),
    ("port_security.addresses", None, expect::ALLOWED_ADDRESSES),
    ("port.limits.from_guest", None, expect::RATE),
    ("port.limits.to_guest", None, expect::RATE),
    ("port.limits.broadcast", None, expect::FLOOD),
    ("port.limits.multicast", None, expect::FLOOD),
    ("port.limits.unknown_unicast", None, expect::FLOOD),
    ("qos.group", None, expect::QOS_GROUP),
    ("qos.class_by_pair", Some("a string"), expect::CLASS),
    ("qos_class.priority", None, expect::PRIORITY),
    ("qos.priority", None, expect::PRIORITY),
    ("qos_class.dscp", Some("u8"), expect::DSCP),
    ("qos_class.pcp", None, expect::PCP),
    ("egress.overhead", None, expect::OVERHEAD),
    ("egress.full", None, expect::FULL),
    ("qos.beyond", None, expect::FULL),
    ("rule.class", None, expect::CLASS),
    ("rule.log", None, "a table, like { ... }"),
];

/// Returns the expected value of a key, or of an element of its array.
pub(super) fn expected(key: &str, is_item: bool, of: &str) -> String {
    let words = row(FILE_KEYS, key, of).or_else(|| row(KEYS, key, of));
    let words = words.or_else(|| of_port(key));
    let are_tables = !key.contains('.') || key == "acl.rule";
    match words.or_else(|| integer(of)).unwrap_or(of) {
        "an object" if is_item => format!("tables [[{key}]]"),
        "an object" => format!("the table [{key}]"),
        "a sequence" if are_tables => format!("tables [[{key}]]"),
        "a sequence" => "a list, like [...]".to_owned(),
        "a boolean" => expect::SWITCH_ON.to_owned(),
        words => words.replace('`', "\""),
    }
}
