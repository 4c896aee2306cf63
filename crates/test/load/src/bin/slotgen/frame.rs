//! Frames: Ethernet, IPv4, UDP, and a number.

use std::net::Ipv4Addr;

/// Offset of the number, behind the headers.
const NUMBER: usize = 42;
/// Offset of the mark behind it.
const MARK_AT: usize = NUMBER + 8;
const MARK: [u8; 4] = *b"slot";
/// Bytes of the shortest frame with a number.
pub(crate) const SHORTEST: usize = 60;

/// A frame without its number.
pub(crate) fn build(len: usize, source: [u8; 6], destination: [u8; 6], header: usize) -> Vec<u8> {
    let mut frame = vec![0; header + len];
    let eth = &mut frame[header..];
    eth[..6].copy_from_slice(&destination);
    eth[6..12].copy_from_slice(&source);
    eth[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut eth[14..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    (ip[8], ip[9]) = (64, 17);
    ip[12..16].copy_from_slice(&[10, 0, 0, 1]);
    ip[16..20].copy_from_slice(&[10, 0, 0, 2]);
    let sum: u32 = ip[..20]
        .chunks(2)
        .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = &mut ip[20..];
    udp[..4].copy_from_slice(&[4, 210, 4, 210]);
    udp[4..6].copy_from_slice(&((len - 34) as u16).to_be_bytes());
    eth[MARK_AT..MARK_AT + 4].copy_from_slice(&MARK);
    for (at, byte) in eth.iter_mut().enumerate().skip(MARK_AT + 4) {
        *byte = at as u8;
    }
    frame
}

/// Writes the number of a frame; `bytes` start behind the virtio header.
pub(crate) fn set_number(bytes: &mut [u8], number: u64) {
    bytes[NUMBER..NUMBER + 8].copy_from_slice(&number.to_le_bytes());
}

/// The number of a frame that is whole.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.len() < SHORTEST || bytes[MARK_AT..MARK_AT + 4] != MARK {
        return None;
    }
    let rest = bytes.iter().enumerate().skip(MARK_AT + 4);
    // A frame of the least length may have been padded.
    if rest.into_iter().any(|(at, byte)| *byte != at as u8) {
        return None;
    }
    let number = bytes[NUMBER..NUMBER + 8].try_into().ok()?;
    Some(u64::from_le_bytes(number))
}

/// Swaps the addresses of a frame, Ethernet's and IPv4's.
pub(crate) fn swap_addresses(bytes: &mut [u8]) {
    for at in 0..6 {
        bytes.swap(at, at + 6);
    }
    for at in 26..30 {
        bytes.swap(at, at + 4);
    }
}

/// Makes the answer of an ARP request, or of an ICMP echo request, for this address of a station.
/// Returns `false` for all other frames.
pub(crate) fn answer(bytes: &mut [u8], address: Ipv4Addr, station: [u8; 6]) -> bool {
    const ARP_REQUEST: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    if bytes.len() < 42 {
        return false;
    }
    if bytes[12..22] == ARP_REQUEST && bytes[38..42] == address.octets() {
        bytes.copy_within(22..32, 32);
        bytes.copy_within(32..38, 0);
        bytes[6..12].copy_from_slice(&station);
        bytes[21] = 2;
        bytes[22..28].copy_from_slice(&station);
        bytes[28..32].copy_from_slice(&address.octets());
        return true;
    }
    let is_echo = bytes[12..15] == [8, 0, 0x45] && bytes[23] == 1 && bytes[34..36] == [8, 0];
    if !is_echo || bytes[30..34] != address.octets() {
        return false;
    }
    swap_addresses(bytes);
    bytes[34] = 0;
    // The sum without the type of a request (RFC 1624).
    let sum = u16::from_be_bytes([bytes[36], bytes[37]]);
    let (sum, carry) = sum.overflowing_add(0x0800);
    bytes[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    true
}
