//! The kernel as a router between two TAP devices, in a network namespace of its own: its tracking
//! of connections is for packets that it routes.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result};

use super::bridge::{PLAIN, ip, open};
use super::{Kind, Peer, Ports};
use crate::namespace;
use crate::process::run;

/// The most connections that it tracks.
const MOST: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// Packets that open a connection are let in, and those of none are dropped.
const RULES: &str = "table ip connections { chain forward { \
    type filter hook forward priority 0; policy drop; \
    ct state established accept; ct state new accept; }; }";

/// With tracking, or with no rule.
pub(super) fn start(tracking: bool) -> Result<Peer> {
    let taps = namespace::inside_new(move || make(tracking))?;
    Ok(Peer {
        kind: Kind::Router,
        lasthop: None,
        processes: Vec::new(),
        ports: Ports::Taps(taps),
        _guests: Vec::new(),
        folder: None,
    })
}

/// The most connections that it tracks.
pub(crate) fn most() -> Result<u32> {
    let most = fs::read_to_string(MOST).context(MOST)?;
    Ok(most.trim().parse()?)
}

/// Each device has the address of the other one's guest, so that guests need not know of the
/// router.
fn make(tracking: bool) -> Result<Vec<File>> {
    let none: [(&str, &Path); 0] = [];
    let mac = |guest: u8| wire::MacAddr(testkit::packets::mac(guest));
    let taps: Result<Vec<File>> = ["tap0", "tap1"]
        .map(|name| open(name, PLAIN))
        .into_iter()
        .collect();
    for (device, guest) in [("tap0", 1), ("tap1", 2)] {
        let own = mac(3 - guest);
        ip(&format!(
            "link set {device} address {own} txqueuelen 1024 up"
        ))?;
        ip(&format!("route add 10.0.0.{guest} dev {device}"))?;
        let neighbour = format!("10.0.0.{guest} lladdr {} nud permanent", mac(guest));
        ip(&format!("neighbour add {neighbour} dev {device}"))?;
    }
    fs::write(FORWARD, "1").context(FORWARD)?;
    if tracking {
        run(&["nft".to_owned(), RULES.to_owned()], &none)?;
    }
    taps
}
