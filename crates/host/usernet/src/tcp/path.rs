//! The way to a guest: how long segments may be on it (RFC 1191, RFC 8201), also where no router
//! says so (RFC 4821, in small).

use super::Sending;
use crate::Nanos;

/// Bytes of headers of IP and TCP, IPv4 and IPv6.
const HEADERS: [u16; 2] = [40, 60];
/// Minimum MTU that counts. Of IPv4 that of Linux (`net.ipv4.route.min_pmtu`): routers fragment
/// packets where less is said, so that no word makes segments tiny. Of IPv6 its minimum (RFC 8200,
/// section 5): a link below fragments by itself.
const LEAST_MTU: [u16; 2] = [552, 1280];
/// MTUs that are tried where a router does not say its own (RFC 1191, section 7).
const PLATEAUS: [u16; 7] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006];
/// MTUs that are tried where segments are lost without a word: IPv6's minimum, which tunnels have
/// as a rule, and the minimum of all.
const PROBES: [u16; 2] = [1280, 552];
/// Timeouts in a row after which the length may be the reason, as in Linux (`tcp_retries1`).
const TIMEOUTS: u32 = 3;
/// Time until a longer size is tried again (RFC 1191, section 6.3): the path may be another one.
const STAYS: Nanos = 600_000_000_000;

/// The way to the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    is_v4: bool,
    /// The segment size of before it was lowered, and when that is tried again.
    before: Option<(u16, Nanos)>,
    /// Identification of the next packet, if routers may fragment them (RFC 6864, section 4.2).
    id: Option<u16>,
}

impl Path {
    /// A path without measurements.
    pub(super) fn new(is_v4: bool) -> Self {
        Self {
            is_v4,
            before: None,
            id: None,
        }
    }

    /// Returns the identification of a frame of `packets` packets; `None`: it must not be
    /// fragmented.
    pub(super) fn next_id(&mut self, packets: u32) -> Option<u16> {
        let id = self.id?;
        self.id = Some(id.wrapping_add(packets as u16));
        Some(id)
    }

    fn of_version(&self, [v4, v6]: [u16; 2]) -> u16 {
        if self.is_v4 { v4 } else { v6 }
    }

    /// A router has refused a packet of `len` bytes, and says this MTU. Returns whether the
    /// segments must be sent again.
    pub(super) fn refused(
        &mut self,
        sending: &mut Sending,
        (mtu, len): (u32, u32),
        now: Nanos,
    ) -> bool {
        let stated = match mtu {
            0 if self.is_v4 => self.plateau(sending, len),
            _ => u16::try_from(mtu).unwrap_or(u16::MAX),
        };
        // Where all is tried, or less is said, routers fragment.
        let is_below = stated < self.of_version(LEAST_MTU);
        let is_least = sending.mss <= self.mss(stated);
        let fragments = self.is_v4 && is_below && (mtu > 0 || is_least) && self.id.is_none();
        if fragments {
            self.id = Some(sending.iss as u16);
        }
        self.lower(sending, stated, now) || fragments
    }

    /// The next MTU to try of a router that does not say its own; 0: all are tried.
    fn plateau(&self, sending: &Sending, len: u32) -> u16 {
        let sent = u32::from(sending.mss) + u32::from(self.of_version(HEADERS));
        let mut lower = PLATEAUS
            .into_iter()
            .filter(|mtu| u32::from(*mtu) < len.min(sent));
        lower.next().unwrap_or(0)
    }

    /// The segment size of an MTU.
    fn mss(&self, mtu: u16) -> u16 {
        mtu.max(self.of_version(LEAST_MTU)) - self.of_version(HEADERS)
    }

    /// Lowers the segment size to that of an MTU; `false` if it is as low already.
    fn lower(&mut self, sending: &mut Sending, mtu: u16, now: Nanos) -> bool {
        let mss = self.mss(mtu);
        let is_lower = mss < sending.mss;
        if is_lower {
            let before = self.before.map_or(sending.mss, |(mss, _)| mss);
            self.before = Some((before, now.saturating_add(STAYS)));
            sending.mss = mss;
        }
        is_lower
    }

    /// Tries shorter segments if long ones are lost again and again. `timeouts`: timeouts in a row.
    pub(super) fn probe(&mut self, sending: &mut Sending, timeouts: u32, now: Nanos) {
        if timeouts < TIMEOUTS || sending.window == 0 {
            return;
        }
        let sent = sending.max.wrapping_sub(sending.una);
        let long = sent.min(sending.mss.into());
        let least = self.of_version(LEAST_MTU);
        let mut shorter = PROBES
            .into_iter()
            .filter(|mtu| *mtu >= least && u32::from(self.mss(*mtu)) < long);
        if let Some(mtu) = shorter.next() {
            self.lower(sending, mtu, now);
        }
    }

    /// Tries the size of before it was lowered, when its time has come.
    pub(super) fn try_longer(&mut self, sending: &mut Sending, now: Nanos) {
        if let Some((mss, at)) = self.before
            && now >= at
        {
            sending.mss = mss;
            *self = Self::new(self.is_v4);
        }
    }
}
