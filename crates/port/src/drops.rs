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
    Oversize "oversize" "The frame is longer than any port takes."
    BadHeader "bad-header" "The virtio header is not a legal one, or asks for an offload that was not negotiated."
    BadOffload "bad-offload" "The offload asked for does not fit the packet's own headers."
    QueueDisabled "queue-disabled" "The guest sent on a queue that it had disabled."
    VlanNotAllowed "vlan-not-allowed" "A tagged frame came from an access port."
    VlanUnknown "vlan-unknown" "The port carries no segment with this VLAN, or none for untagged frames."
    BadSource "bad-source" "The source address is a group address or zero."
    LinkLocal "link-local" "The destination is reserved for the link itself (802.1D) and never forwarded."
    MacClaim "mac-claim" "The source address belongs to another port, which still uses it or has it in its guard."
    Reflection "reflection" "The destination lies behind the port that the frame came from."
    NoReceiver "no-receiver" "The segment has no other port."
    UpcallFull "upcall-full" "Too many frames of this port already wait for a decision."
    UpcallTimeout "upcall-timeout" "No decision came in time."
    // Counted at the port that the frame was for.
    ReceiverFull "receiver-full" "The receiver had no free buffer."
    ReceiverDown "receiver-down" "No guest is attached to the receiving port, or its queue is stopped."
    BufferTooSmall "buffer-too-small" "The receiver's buffer is smaller than the frame, and it takes no merged buffers."
    ExceedsMtu "exceeds-mtu" "The frame is longer than the receiving port's MTU."
    FaultInjected "fault-injected" "A test port dropped it on purpose."
    // Counted at the port that sent the frame, whichever side's rules dropped it.
    AclDenied "acl-denied" "An access list of the sender, or of all that it was for, does not let it pass."
    AclRejected "acl-rejected" "An access list does not let it pass, and its sender is told so (TCP reset, ICMP unreachable), if not too often."
    // Counted at the port that sent the frame, which is guarded.
    SpoofedMac "spoofed-mac" "The source address is not one that the port's guest may use."
    SpoofedAddress "spoofed-address" "The IP source address is not one that the port's guest may use."
    SpoofedNeighbour "spoofed-neighbour" "ARP or neighbour discovery claims what is not its sender's, or contradicts itself."
    DhcpServer "dhcp-server" "The port's guest may not serve DHCP."
    RouterAdvert "router-advert" "The port's guest may not advertise itself as a router, or redirect others."
    Unreadable "unreadable" "What the frame carries is hidden behind tags, LLC or headers, or malformed, so that a guard or an access list cannot check it."
    Storm "storm" "The port has sent more frames for many, or for a station that nobody knows, than it may."
    // Counted at the port that the frame was for.
    RateLimited "rate-limited" "The receiving port's limit was reached."
    // Counted at the port that sent the frame. No loss.
    Answered "answered" "It asked for an address whose owner is known, and got its answer from the switch."
    // Counted at the port that sent the frame.
    TooManySegments "too-many-segments" "The frame is to be cut into more segments than any guest that means well asks for."
    // Counted at the port that the frame was for.
    LeftOut "left-out" "A frame for many did not go to this port, because an access list does not let it; others may have got it."
    PortDown "port-down" "The port that it came from is administratively down."
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
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/DROPS.md");
        let text = std::fs::read_to_string(file).unwrap();
        let head = "|---|---|\n";
        let (before, rest) = text.split_once(head).unwrap();
        let (rows, after) = rest.split_once("\n\n").unwrap();
        let row = |reason: &DropReason| format!("| `{reason}` | {} |", reason.help());
        let expected: Vec<String> = REASONS.iter().map(row).collect();
        if std::env::var_os("BLESS").is_some() {
            let table = expected.join("\n");
            std::fs::write(file, format!("{before}{head}{table}\n\n{after}")).unwrap();
            return;
        }
        let rows: Vec<&str> = rows.lines().collect();
        assert_eq!(rows, expected, "BLESS=1 cargo test -p lasthop-port drops");
    }
}
