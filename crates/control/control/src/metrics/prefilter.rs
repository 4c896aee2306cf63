//! Metrics of prefilters: denied frames that end before the switch.

use api::v1::PrefilterStatus;

use super::Facts;
use super::families::{families, labels};
use super::text::{Kind, Page};

/// Writes the families.
pub(super) fn write(facts: &Facts, page: &mut Page) {
    let ports = facts.status.ports.iter();
    let ports = ports.filter_map(|port| Some((&*port.name, port.prefilter.as_ref()?)));
    let ports: Vec<(&str, &PrefilterStatus)> = ports.collect();
    families! { page, Gauge, (port, of) in &ports, ["port" = port],
        "lasthop_prefilter_active"
            "1 if denied frames of an uplink may end before the switch, else 0."
            u8::from(of.back_end.is_some());
        "lasthop_prefilter_entries" "Flows that end before the switch now." of.entries;
    }
    families! { page, Counter, (port, of) in &ports, ["port" = port],
        "lasthop_prefilter_frames"
            "Frames that ended before the switch; they count as acl-denied drops, too."
            of.frames;
        "lasthop_prefilter_bytes" "Bytes of these frames." of.bytes;
        "lasthop_prefilter_samples" "Denied frames that entries were chosen by." of.samples;
    }
    let changes = ports.iter().flat_map(|(port, of)| {
        let reasons = [
            ("added", of.added),
            ("aged", of.aged),
            ("outdated", of.outdated),
        ];
        reasons.map(|(what, number)| (port, what, number))
    });
    families! { page, Counter, (port, what, number) in changes, ["port" = port, "what" = what],
        "lasthop_prefilter_changes"
            "Entries that were added, that went without frames or for others (aged), and that the \
             policy no longer denied (outdated), since control started."
            number;
    }
}
