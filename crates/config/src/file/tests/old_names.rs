//! An old name is refused with its place and the new name, in files and in documents of the API.

use api::v1::old_names::{OLD_NAMES, OldPlace};
use api::v1::{DesiredState, PortPatch, SwitchSpec};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{PORT, read, wrong};
use crate::json;

#[test]
fn old_keys_of_files() {
    let error = |text: &str| read(text).unwrap_err().to_string();
    assert_eq!(
        error("[switch]\nname = \"a\"\n\n[switch.batching]\nthreshold = 5\n"),
        "lasthop.toml:4:9: switch.batching: renamed to \"coalescing\" \
         (see docs/user/changed-names.md)"
    );
    assert_eq!(
        error("[switch]\ncopy_engine = \"worker\"\n"),
        "lasthop.toml:2:1: switch.copy_engine: removed: workers copy \
         (see docs/user/changed-names.md)"
    );
    assert_eq!(
        error(&format!("{PORT}guard = {{ macs = \"any\" }}\n")),
        "lasthop.toml:5:1: port.guard: renamed to \"port_security\" \
         (see docs/user/changed-names.md)"
    );
    for row in OLD_NAMES {
        if let OldPlace::Key(table) = row.place {
            let message = wrong(&format!("{table}\n{} = 1\n", row.old));
            assert!(message.ends_with(&format!(": {row}")), "{message}");
        }
    }
}

#[test]
fn old_values_of_files() {
    let renamed = "\"learned-once\" was renamed to \"sticky\" (see docs/user/changed-names.md)";
    for value in ["\"learned-once\"", "[\"learned-once\"]"] {
        for key in ["macs", "addresses"] {
            let message = wrong(&format!("{PORT}port_security.{key} = {value}\n"));
            assert_eq!(message, format!("5: port.port_security.{key}: {renamed}"));
        }
    }
    let error = read("[switch]\nname = \"a\"\nguest_state = \"proc\"\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "lasthop.toml:3:15: switch.guest_state: \"proc\" was removed: no rule could use samples of \
         /proc, write \"auto\" or \"off\" (see docs/user/changed-names.md)"
    );
}

#[test]
fn old_names_in_documents() {
    fn said<T: DeserializeOwned + std::fmt::Debug>(document: Value) -> String {
        let problem = json::problem(&json::read::<T, _>(document).unwrap_err());
        assert_eq!(problem.status, 422, "{problem}");
        problem.to_string()
    }
    let page = "(see docs/user/changed-names.md)";
    let document = json!({"switch": {"name": "a", "offload": {"mark": 5}}});
    let renamed = format!("switch.offload: renamed to \"helpers\" {page}");
    assert_eq!(said::<DesiredState>(document), renamed);
    let document = json!({"name": "a", "helpers": {"mark": 5}});
    let renamed = format!("helpers.mark: renamed to \"backlog\" {page}");
    assert_eq!(said::<SwitchSpec>(document), renamed);
    let document = json!({"name": "a", "coalescing": {"threshold": 5}});
    let renamed = format!("coalescing.threshold: renamed to \"frames\" {page}");
    assert_eq!(said::<SwitchSpec>(document), renamed);
    let removed = format!("copy_engine: removed: workers copy {page}");
    let document = json!({"name": "a", "copy_engine": "worker"});
    assert_eq!(said::<SwitchSpec>(document), removed);
    let renamed = format!("guard: renamed to \"port_security\" {page}");
    assert_eq!(said::<PortPatch>(json!({"guard": null})), renamed);
    let document = json!({"port_security": {"macs": "learned-once"}});
    let renamed = "port_security.macs: \"learned-once\" was renamed to \"sticky\"";
    assert_eq!(said::<PortPatch>(document), format!("{renamed} {page}"));
    let document = json!({"name": "a", "guest_state": "proc"});
    let removed = "guest_state: \"proc\" was removed: no rule could use samples of /proc, \
                   write \"auto\" or \"off\"";
    assert_eq!(said::<SwitchSpec>(document), format!("{removed} {page}"));
    let document = json!({"port_security": {"macs": "all"}});
    let expected = "port_security.macs: expected \"any\", \"sticky\" or a list of addresses, \
                    found \"all\"";
    assert_eq!(said::<PortPatch>(document), expected);
}
