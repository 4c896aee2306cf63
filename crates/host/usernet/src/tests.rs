//! Tests of the translator: smoltcp as the guest, and packets one by one.

mod batches;
mod bounds;
mod forwards;
mod guest;
mod host;
mod packets;
mod paths;
mod peers;
mod rfcs;
mod streams;
mod timers;
mod times;
mod waiting;

use wire::MacAddr;

use crate::network::{Access, Network};
use crate::{Bounds, Secret, Settings, Times};

/// Station of the gateway.
const GATEWAY: MacAddr = MacAddr([0x52, 0x55, 10, 0, 2, 2]);
/// Station of the guest.
const GUEST: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 15]);

fn settings() -> Settings {
    let prefix = "10.0.2.0/24".parse().unwrap();
    let prefix6 = "fd12:3456:789a:1::/64".parse().ok();
    Settings {
        network: Network::new(prefix, prefix6, GATEWAY, 1500).unwrap(),
        access: Access::default(),
        bounds: Bounds::default(),
        times: Times::default(),
        secret: Secret([1, 2]),
        super_frames: false,
    }
}
