//! The direction of a frame in its connection, and the reasons of invalid frames.

use std::fmt;

/// The side of a connection that a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The side that opened the connection.
    Original,
    /// The side that answers.
    Reply,
}

impl Direction {
    /// The other side.
    #[inline]
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Original => Self::Reply,
            Self::Reply => Self::Original,
        }
    }
}

/// Writes the enumeration of reasons and their texts.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// The reason that makes a frame invalid: it belongs to no connection and opens none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Invalid {$(
            $(#[$doc])*
            $name,
        )*}

        impl Invalid {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The reason in words, for `lasthop trace`.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// The transport header is cut off or contradicts itself.
    Header = "its transport header is cut off or contradicts itself";
    /// The transport checksum is wrong, of a segment that opens or closes.
    Checksum = "its checksum is wrong";
    /// TCP flags that no stack sends together (RFC 9293, 3.10.7.4).
    Flags = "no stack sends these TCP flags together";
    /// A segment or an answer that no connection is known for, and that opens none.
    NoConnection = "no connection is known, and it opens none";
    /// TCP that is met in its middle, while this is off.
    PickUp = "it is in the middle of an unknown TCP connection";
    /// A segment that the state of its connection excludes.
    State = "the state of its TCP connection excludes it";
    /// Its sequence number is beyond the window of the receiver.
    Sequence = "its sequence number is beyond the receiver's window";
    /// It acknowledges bytes that were not sent.
    Acknowledgement = "it acknowledges bytes that were not sent";
    /// A reset before the bytes that the other side has acknowledged.
    Reset = "its reset is before what the other side has acknowledged";
    /// An ICMP message that neither asks, answers nor reports.
    Icmp = "its ICMP type is none of a tracked message";
    /// An ICMP error with damaged headers in the packet that it quotes.
    Quote = "it quotes a packet with damaged headers";
    /// An ICMP error about no known connection.
    Unrelated = "it quotes a packet of no known connection";
    /// An ICMP error that goes to another host than the sender of the quoted packet.
    WrongSide = "it quotes a packet that its receiver has not sent";
    /// A first fragment without a whole transport header (RFC 1858).
    TinyFragment = "its first fragment has no whole transport header";
    /// Fragments that overlap, or two first ones (RFC 5722).
    Overlap = "it overlaps another fragment of its datagram";
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_words() {
        let texts: std::collections::BTreeSet<_> = Invalid::ALL.iter().map(|r| r.text()).collect();
        assert_eq!(texts.len(), Invalid::ALL.len());
    }
}
