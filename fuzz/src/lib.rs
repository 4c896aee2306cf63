//! Implementation of the fuzz targets. The files in `fuzz_targets/` only call these functions, so
//! that the seeds can be replayed by an ordinary test as well.
//!
//! Every function panics when a property is violated. Besides "no panic, no endless loop", the
//! first lines of each module list its properties.

mod api_json;
mod channel_messages;
mod classifier;
mod coalesce;
mod config_toml;
mod conntrack;
mod conntrack_file;
mod conntrack_table;
mod driver_queue;
mod egress_tree;
mod expression;
mod guarded;
mod guest;
mod iommu;
mod iotlb;
mod memif_messages;
mod offload_deliver;
mod offload_page;
mod pipe_messages;
mod queue;
mod queue_slots;
mod ring_race;
mod ring_record;
mod session_record;
mod switch_race;
mod usernet;
mod vhost_user;
mod wire_parse;
mod wire_segment;

#[cfg(test)]
mod tests;

pub use api_json::run as api_json;
pub use channel_messages::run as channel_messages;
pub use classifier::run as classifier;
pub use coalesce::run as coalesce;
pub use config_toml::run as config_toml;
pub use conntrack::run as conntrack;
pub use conntrack_file::run as conntrack_file;
pub use conntrack_table::run as conntrack_table;
pub use driver_queue::run as driver_queue;
pub use egress_tree::run_tree as egress_tree;
pub use expression::run as expression;
pub use iotlb::run as iotlb;
pub use memif_messages::run as memif_messages;
pub use offload_deliver::run as offload_deliver;
pub use offload_page::run as offload_page;
pub use pipe_messages::run as pipe_messages;
pub use queue_slots::run as queue_slots;
pub use ring_race::run as ring_race;
pub use ring_record::run as ring_record;
pub use session_record::run as session_record;
pub use switch_race::run as switch_race;
pub use usernet::{frames as usernet_frames, peer as usernet_peer, records as user_records};
pub use vhost_user::run as vhost_user_session;
pub use wire_parse::run as wire_parse;
pub use wire_segment::run as wire_segment;

/// A split queue and a driver that writes anything anywhere.
pub fn queue_split(data: &[u8]) {
    queue::run(data, false);
}

/// A packed queue and a driver that writes anything anywhere.
pub fn queue_packed(data: &[u8]) {
    queue::run(data, true);
}

/// A target by name.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 29] = [
    ("api_json", api_json),
    ("channel_messages", channel_messages),
    ("classifier", classifier),
    ("coalesce", coalesce),
    ("config_toml", config_toml),
    ("conntrack", conntrack),
    ("conntrack_file", conntrack_file),
    ("conntrack_table", conntrack_table),
    ("driver_queue", driver_queue),
    ("egress_tree", egress_tree),
    ("expression", expression),
    ("iotlb", iotlb),
    ("memif_messages", memif_messages),
    ("offload_deliver", offload_deliver),
    ("offload_page", offload_page),
    ("pipe_messages", pipe_messages),
    ("queue_packed", queue_packed),
    ("queue_slots", queue_slots),
    ("queue_split", queue_split),
    ("ring_race", ring_race),
    ("ring_record", ring_record),
    ("session_record", session_record),
    ("switch_race", switch_race),
    ("user_records", user_records),
    ("usernet_frames", usernet_frames),
    ("usernet_peer", usernet_peer),
    ("vhost_user_session", vhost_user_session),
    ("wire_parse", wire_parse),
    ("wire_segment", wire_segment),
];
