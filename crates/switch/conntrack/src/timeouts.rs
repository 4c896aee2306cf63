//! Timeouts of connections, with the names and defaults of `nf_conntrack`
//! (`Documentation/networking/nf_conntrack-sysctl.rst` of Linux).
//!
//! One differs: an established TCP connection is kept for 24 hours without a frame, not for five
//! days (RFC 5382 asks for two hours and four minutes at least).

/// Milliseconds of a clock that starts anywhere, modulo 2^32.
pub type Millis = u32;

const SECOND: Millis = 1000;
const MINUTE: Millis = 60 * SECOND;
const HOUR: Millis = 60 * MINUTE;

/// Writes the enumeration, its names and its defaults.
macro_rules! timeouts {
    ($($(#[$doc:meta])* $name:ident $text:literal = $default:expr;)*) => {
        /// A timeout.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Timeout {$(
            $(#[$doc])*
            $name,
        )*}

        impl Timeout {
            /// All timeouts.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name: `nf_conntrack`'s, without `timeout`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }

        const DEFAULTS: [Millis; Timeout::ALL.len()] = [$($default),*];
    };
}

timeouts! {
    /// TCP: a SYN was sent, or one by each side.
    TcpSynSent "tcp_syn_sent" = 2 * MINUTE;
    /// TCP: the SYN was answered.
    TcpSynRecv "tcp_syn_recv" = MINUTE;
    /// TCP: established, and all bytes are acknowledged.
    TcpEstablished "tcp_established" = 24 * HOUR;
    /// TCP: one side has closed.
    TcpFinWait "tcp_fin_wait" = 2 * MINUTE;
    /// TCP: one side has closed, and that is acknowledged.
    TcpCloseWait "tcp_close_wait" = MINUTE;
    /// TCP: both sides have closed.
    TcpLastAck "tcp_last_ack" = 30 * SECOND;
    /// TCP: both sides have closed, and the last FIN is acknowledged.
    TcpTimeWait "tcp_time_wait" = 2 * MINUTE;
    /// TCP: reset.
    TcpClose "tcp_close" = 10 * SECOND;
    /// TCP: a side announces a window of zero.
    TcpMaxRetrans "tcp_max_retrans" = 5 * MINUTE;
    /// TCP: bytes are not acknowledged; or met in its middle, by one side yet.
    TcpUnacknowledged "tcp_unacknowledged" = 5 * MINUTE;
    /// UDP: not answered, or for less than two seconds.
    Udp "udp" = 30 * SECOND;
    /// UDP: both sides send.
    UdpStream "udp_stream" = 2 * MINUTE;
    /// ICMP queries.
    Icmp "icmp" = 30 * SECOND;
    /// ICMPv6 queries.
    Icmpv6 "icmpv6" = 30 * SECOND;
    /// Other protocols.
    Generic "generic" = 10 * MINUTE;
}

/// A value for each timeout, in milliseconds below 2^31: ages are differences of a clock that
/// wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts([Millis; Timeout::ALL.len()]);

impl Timeouts {
    /// The longest timeout.
    pub const MAX: Millis = i32::MAX as Millis;

    /// These values, in the order of [`Timeout::ALL`]; others have their defaults.
    #[must_use]
    pub fn of(values: &[Millis]) -> Self {
        let mut timeouts = Self::default();
        let named = Timeout::ALL.iter().zip(values);
        named.for_each(|(which, value)| timeouts.set(*which, *value));
        timeouts
    }

    /// The value of one.
    #[inline]
    #[must_use]
    pub const fn get(&self, which: Timeout) -> Millis {
        self.0[which as usize]
    }

    /// The shortest one: what was used since is not over.
    #[inline]
    #[must_use]
    pub fn shortest(&self) -> Millis {
        self.0.iter().copied().fold(Self::MAX, Millis::min)
    }

    /// Sets one; what is longer than [`MAX`](Self::MAX) becomes that.
    pub const fn set(&mut self, which: Timeout, value: Millis) {
        self.0[which as usize] = if value > Self::MAX { Self::MAX } else { value };
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self(DEFAULTS)
    }
}

/// The settings of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Whether a TCP segment from the middle of an unknown connection opens one; else it is
    /// invalid.
    pub pick_up: bool,
    /// Whether sequence windows are checked; else states only.
    pub strict: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeouts: Timeouts::default(),
            pick_up: true,
            strict: true,
        }
    }
}
