//! Tests of access lists: the classifier against the oracle, what is refused, and what comes of
//! frames.

mod decided;
mod differential;
mod refused;
mod unreadable;

use std::collections::BTreeMap;

use super::*;
use crate::{PortId, Segment, SegmentId};

const LAN: SegmentId = SegmentId(0);

/// A list without rules.
const LIST: &str = "[[acl]]\nname = \"l\"\ndirection = \"from-guest\"\nsegments = [\"lan\"]\n";

/// Groups of which `web` and `db` have `vm2` in common.
const GROUPS: &str = "
[[group]]
name = \"web\"
ports = [\"vm3\", \"vm2\"]
[[group]]
name = \"db\"
ports = [\"vm2\"]
[[group]]
name = \"apart\"
ports = [\"vm4\"]
[[group]]
name = \"first\"
ports = [\"vm1\"]
";

fn segments() -> BTreeMap<SegmentId, Segment> {
    let (name, vlan) = ("lan".to_owned(), None);
    [(LAN, Segment { name, vlan })].into()
}

/// Compiles a model with the segment `lan` and the ports `vm1` to `vm4`.
fn try_compile(text: &str) -> Result<CompiledRules, AccessError> {
    let model: AccessModel = toml::from_str(text).expect("a model");
    let again: AccessModel = toml::from_str(&toml::to_string(&model).unwrap()).unwrap();
    assert_eq!(model, again, "what was written is read");
    let ports = (1..=4).map(|id| (format!("vm{id}"), PortId(id))).collect();
    let names = Names {
        segments: &segments(),
        ports: &ports,
        classes: &BTreeMap::new(),
    };
    Rules::compile(&model, names)
}
