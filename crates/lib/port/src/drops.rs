//! Names for every drop.

/// One row a reason: variant, stable text, what it means to an operator.
macro_rules! drop_reasons {
    ($($variant:ident $text:literal $help:literal)*) => {
        /// Why a frame was not delivered. The texts are stable; the numbers are an index into the
        /// counters, so new reasons go to the end.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $help] $variant,)*
        }

        /// All reasons, in the order of their counters.
        pub const REASONS: &[DropReason] = &[$(DropReason::$variant),*];

        impl DropReason {
            /// The stable name, as statistics show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $text,)* }
            }

            /// Whether the frame was lost. An ARP request to which the switch replied was not:
            /// users see a counter of its own (`neighbour_replies`).
            #[must_use]
            pub const fn is_loss(self) -> bool {
                !matches!(self, DropReason::NeighbourReply)
            }

            /// One sentence for people.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(DropReason::$variant => $help,)* }
            }
        }
    };
}

drop_reasons! {
    // Counted at the port that sent the frame.
    Runt "runt" "The frame is shorter than an Ethernet header."
    Oversize "oversize" "The frame is longer than the longest frame that any port takes."
    BadHeader "bad-header"
        "The virtio-net header is malformed or requests an offload that was not negotiated."
    BadOffload "bad-offload" "The requested offload does not match the headers of the packet."
    QueueDisabled "queue-disabled" "The guest sent on a queue that it had disabled."
    VlanNotAllowed "vlan-not-allowed" "A tagged frame arrived at an access port."
    VlanUnknown "vlan-unknown"
        "The trunk port carries no segment with this VLAN ID, or no untagged segment."
    BadSource "bad-source" "The source MAC address is a group address or zero."
    LinkLocal "link-local"
        "The destination MAC address is reserved for the link (IEEE 802.1D) and never forwarded."
    SpoofedSource "spoofed-source"
        "The source MAC address belongs to other ports, by `macs` or a static entry."
    Reflection "reflection"
        "The destination MAC address is behind the port at which the frame arrived."
    NoReceiver "no-receiver" "The segment has no other port."
    UpcallFull "upcall-full" "Too many frames of this port wait for a forwarding decision."
    UpcallTimeout "upcall-timeout" "No forwarding decision arrived in time."
    // Counted at the port that the frame was for.
    ReceiverFull "receiver-full" "The receiving guest had no free receive buffer."
    ReceiverDown "receiver-down"
        "No guest is attached to the receiving port, or its queue is stopped."
    BufferTooSmall "buffer-too-small"
        "The frame does not fit the receive buffer, and mergeable buffers are not negotiated."
    ExceedsMtu "exceeds-mtu" "The frame is longer than the MTU of the receiving port."
    FaultInjected "fault-injected" "A port for tests dropped the frame on purpose."
    // Counted at the port that sent the frame, whichever side's rules dropped it.
    AclDenied "acl-denied" "An access list dropped the frame on its way to every receiver."
    AclRejected "acl-rejected"
        "An access list rejected the frame; the sender gets a TCP reset or ICMP unreachable."
    // Counted at the port that sent the frame, which is guarded.
    SpoofedMac "spoofed-mac" "The port_security of the port does not allow this source MAC address."
    SpoofedIp "spoofed-ip" "The port_security of the port does not allow this source IP address."
    SpoofedNeighbour "spoofed-neighbour"
        "ARP or neighbour discovery claims a foreign address or contradicts itself."
    DhcpServer "dhcp-server" "The port_security of the port does not allow a DHCP server."
    RouterAdvert "router-advert"
        "The port_security of the port does not allow router advertisements and redirects."
    Unparseable "unparseable"
        "Tags, extension headers or malformed headers prevent a check by port security or rules."
    StormControl "storm-control"
        "The port exceeded its limit of broadcast, multicast or unknown unicast frames."
    // Counted at the port that the frame was for.
    RateLimited "rate-limited" "A port reached its rate limit, or its share of a scheduled port."
    // Counted at the port that sent the frame. No loss: see `is_loss`.
    NeighbourReply "neighbour-reply"
        "An ARP request or neighbour solicitation to which the switch replied itself."
    // Counted at the port that sent the frame.
    TooManySegments "too-many-segments"
        "The frame would be cut into more segments than the switch allows."
    // Counted at the port that the frame was for.
    AclExcluded "acl-excluded"
        "An access list excluded this port from a flooded frame; other ports may have received it."
    PortDown "port-down" "The sending port is administratively down."
    // Counted at the port that the frame was for.
    ReceiveShare "receive-share"
        "The receiving port has had its share of a busy worker's time for copying frames to it."
    // Counted at the port that sent the frame, whose guest has an IOMMU.
    NotGranted "not-granted"
        "The guest sent a buffer that its IOMMU does not map for reading."
    // Counted at the port that the frame was for, whose guest has an IOMMU.
    ReceiverUntranslated "receiver-untranslated"
        "The translation of the receive buffer's address had not come from the front end yet, and there was no room for the frame to wait, or it had waited for a second."
    // Counted at the port of an interface, in both directions.
    DriverEnded "driver-ended" "The frame was in the rings of a driver process when that ended."
    InterfaceRefused "interface-refused"
        "The host's interface refused the frame: it is down, or the frame is too long for it."
    // Counted at the user port that the frame was for, by its driver.
    UserDenied "user-denied"
        "Guests may not reach this destination by the user port, or the flow is another guest's."
    UserFlows "user-flows"
        "The user port, or the guest, has as many flows as it may have, or half-open ones."
    UserFragment "user-fragment" "User ports do not translate fragments."
    UserProtocol "user-protocol"
        "User ports do not translate this protocol, the packet contradicts itself, or it is a ping and the host's net.ipv4.ping_group_range permits none."
    UserUnreachable "user-unreachable"
        "The host of the user port has no way to the destination, nothing answers there, or the time to live ends at the gateway."
    UserPorts "user-ports"
        "The guest has as many of the host's ephemeral ports, or identifiers of echo requests, as it may have."
    // Counted at the port that sent the frame, in a segment with stateful rules.
    ConnectionInvalid "connection-invalid"
        "The frame belongs to no connection and cannot open one, and no rule allows it but stateful ones."
    ConnectionFull "connection-full"
        "The frame would open a connection, and the table has no room for one of its port."
    FragmentEarly "fragment-early"
        "A later fragment arrived before the first one of its datagram, which decides about it."
}

/// All reasons by which frames are lost, in the order of [`REASONS`].
pub fn losses() -> impl Iterator<Item = &'static DropReason> {
    REASONS.iter().filter(|reason| reason.is_loss())
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

// The counters hold this many slots a port; see `counters`.
const _: () = assert!(REASONS.len() <= crate::counters::DROP_SLOTS);

#[cfg(test)]
mod tests {
    use super::*;

    /// `BLESS=1` puts the rows there.
    #[test]
    fn the_documentation_has_every_reason() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/user/reference/drops.md"
        );
        let text = std::fs::read_to_string(file).unwrap();
        let head = "|---|---|\n";
        let (before, rest) = text.split_once(head).unwrap();
        let (rows, after) = rest.split_once("\n\n").unwrap();
        let row = |reason: &DropReason| format!("| `{reason}` | {} |", reason.help());
        let expected: Vec<String> = losses().map(row).collect();
        if std::env::var_os("BLESS").is_some() {
            let table = expected.join("\n");
            std::fs::write(file, format!("{before}{head}{table}\n\n{after}")).unwrap();
            return;
        }
        let rows: Vec<&str> = rows.lines().collect();
        assert_eq!(rows, expected, "BLESS=1 cargo test -p lasthop-port drops");
    }
}
