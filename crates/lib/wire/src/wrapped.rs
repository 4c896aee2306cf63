//! Encapsulated IP and ARP that a receiver may decapsulate by itself: filters that do not do the
//! same do not match them (CVE-2021-27853, CVE-2021-27854, CVE-2021-27861, CVE-2021-27862).

use crate::bytes::{array, be16};
use crate::ethernet::EtherType;

/// Bytes behind the EtherType of a frame without IP and ARP that are parsed at most: LLC and SNAP
/// (RFC 1042).
pub const LLC_LEN: usize = 8;

/// The first EtherType; what is smaller is a length, and LLC follows (IEEE 802.3).
const FIRST_TYPE: u16 = 0x600;
/// Service access points of IP, ARP and SNAP (IEEE 802.2; RFC 1700, "Link Service Access Points").
const SAP_IP: u8 = 0x06;
const SAP_ARP: u8 = 0x98;
const SAP_SNAP: u8 = 0xaa;
/// Set in an access point that stands for a group.
const GROUP: u8 = 1;
/// Organisations of SNAP headers with an EtherType: RFC 1042, IEEE 802.1H.
const OUIS: [[u8; 3]; 2] = [[0, 0, 0], [0, 0, 0xf8]];

/// Returns whether what follows an EtherType is something that a receiver may read as IP or ARP all
/// the same: a tag without a VLAN, which is nothing but a priority (IEEE 802.1Q, 6.9), or LLC. Of
/// LLC, what it is for counts alone: who receives it is not known to look at the rest.
#[inline(never)]
pub(crate) fn hides(ethertype: EtherType, behind: &[u8]) -> bool {
    match ethertype {
        EtherType::VLAN | EtherType::SERVICE_VLAN => {
            let tci = behind.first_chunk::<2>().map(|tci| be16(tci, 0));
            tci.is_none_or(|tci| tci & 0xfff == 0)
        }
        EtherType(..FIRST_TYPE) => match behind.first().map(|sap| sap & !GROUP) {
            Some(SAP_IP | SAP_ARP) => true,
            Some(SAP_SNAP) => behind.first_chunk().is_some_and(snap_hides),
            _ => false,
        },
        _ => false,
    }
}

fn snap_hides(snap: &[u8; LLC_LEN]) -> bool {
    let known = matches!(
        EtherType(be16(snap, 6)),
        EtherType::IPV4
            | EtherType::IPV6
            | EtherType::ARP
            | EtherType::VLAN
            | EtherType::SERVICE_VLAN
    );
    known && OUIS.contains(&array::<LLC_LEN, 3>(snap, 3))
}

#[cfg(test)]
mod tests;
