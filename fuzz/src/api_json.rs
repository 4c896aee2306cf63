//! The documents of API requests: every one is refused with a field or a reason, or makes a checked
//! and normalised desired state, which is the same when it is requested again.

use std::path::Path;

use api::v1::{DesiredState, MirrorSpec, PortPatch, PortSpec, SegmentPatch, SegmentSpec};
use config::desired::{self, Change, Difference, MirrorChange};
use serde::de::DeserializeOwned;
use serde_json::from_slice;

/// Desired state before the request.
const BEFORE: &str = r#"{
    "segments": [{"name":"blue","vlan":10},{"name":"red"}],
    "ports": [
        {"name":"vm1","kind":"vhost-user","socket":"vm1.sock","segment":"blue"},
        {"name":"vm2","kind":"vhost-user","socket":"vm2.sock","trunk":["blue","red"]},
        {"name":"t0","kind":"tap","address":"10.0.0.1/24"}
    ],
    "mirrors": [{"name":"m1","to":"t0","ports":["vm1"]}]
}"#;

/// The first byte says which request it is, the rest is its body.
pub fn run(data: &[u8]) {
    let Some((which, body)) = data.split_first() else {
        return;
    };
    let Some(change) = change(*which, body) else {
        return;
    };
    let dir = Path::new("/run/lasthop");
    let mut before: DesiredState = serde_json::from_str(BEFORE).expect("a document");
    desired::normalise(&mut before);
    let after = match desired::changed(&before, &change, dir) {
        Ok(after) => after,
        Err(problem) => {
            assert!((400..500).contains(&problem.status), "{problem:?}");
            assert!(!problem.detail.is_empty());
            return;
        }
    };
    assert!(desired::check(&after, dir).is_ok(), "a checked state");
    let mut again = after.clone();
    desired::normalise(&mut again);
    assert_eq!(again, after, "normalised once is normalised");
    // What the API answers can be put back, and changes nothing.
    let document = serde_json::to_vec(&after).expect("a document");
    let read: DesiredState = from_slice(&document).expect("what we wrote");
    let same =
        desired::changed(&after, &Change::State(Box::new(read)), dir).expect("the desired state");
    assert_eq!(desired::version(&same), desired::version(&after));
    assert!(Difference::between(&same, &after).is_empty());
    let differs = !Difference::between(&before, &after).is_empty();
    assert!(!differs || desired::version(&before) != desired::version(&after));
}

fn change(which: u8, body: &[u8]) -> Option<Change> {
    Some(match which % 12 {
        0 => Change::State(Box::new(read(body)?)),
        1 => Change::PatchState(read(body)?),
        2 => Change::PatchSwitch(read(body)?),
        3 => Change::AddSegment(read::<SegmentSpec>(body)?),
        4 => Change::SetSegment("blue".to_owned(), read::<SegmentPatch>(body)?.into_value()),
        5 => Change::AddPort(Box::new(read::<PortSpec>(body)?)),
        6 => Change::SetPort("vm1".to_owned(), read::<PortPatch>(body)?.into_value()),
        7 => Change::RemoveSegment(std::str::from_utf8(body).ok()?.to_owned()),
        8 => Change::RemovePort(std::str::from_utf8(body).ok()?.to_owned()),
        9 => Change::Mirror(MirrorChange::Add(read::<MirrorSpec>(body)?)),
        10 => Change::Mirror(MirrorChange::Put(read::<MirrorSpec>(body)?)),
        _ => Change::Mirror(MirrorChange::Remove(
            std::str::from_utf8(body).ok()?.to_owned(),
        )),
    })
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    from_slice(body).ok()
}
