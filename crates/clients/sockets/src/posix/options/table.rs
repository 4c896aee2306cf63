//! The options of Linux (socket(7), tcp(7), udp(7), ip(7), ipv6(7)), with what becomes of each.

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, SOL_UDP, c_int};

/// Sockets that have an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    /// All.
    All,
    /// TCP.
    Stream,
    /// `AF_INET6`.
    Six,
}

/// The value of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// 0 or not; what is read is 0 or 1.
    Flag,
    /// A number of this range, and its default.
    Number(c_int, c_int, c_int),
    /// As [`Value::Number`]; -1 is the default.
    Byte(c_int, c_int, c_int),
    /// `struct timeval`.
    Time,
    /// `struct linger`.
    Linger,
    /// Text.
    Text,
}

/// The treatment of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It does what it does in Linux.
    Works,
    /// It does that, but for what the text says.
    Partly(&'static str),
    /// Accepted: its request is so anyway, or there is nothing that it could change.
    Moot(&'static str),
    /// It can be read only.
    Read(&'static str),
    /// `ENOPROTOOPT`, as an older Linux has it.
    Refused,
}

/// An option.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) level: c_int,
    pub(super) number: c_int,
    pub(super) name: &'static str,
    pub(super) of: Of,
    pub(super) value: Value,
    pub(super) fate: Fate,
}

macro_rules! entries {
    ($($level:ident $name:ident $of:ident $value:expr, $fate:expr;)*) => {
        &[$(Entry {
            level: $level,
            number: libc::$name,
            name: stringify!($name),
            of: Of::$of,
            value: $value,
            fate: $fate,
        }),*]
    };
}

use Fate::{Moot, Partly, Read, Refused, Works};
use Value::{Byte, Flag, Linger, Number, Text, Time};

/// Any number.
const NUMBER: Value = Number(c_int::MIN, c_int::MAX, 0);
const NO_FRAGMENTS: Fate =
    Moot("nothing is fragmented: a datagram longer than the MTU fails with `EMSGSIZE`");

/// All of them. What is not here is refused as [`Fate::Refused`] is.
pub(super) const ENTRIES: &[Entry] = entries! {
    SOL_SOCKET SO_ACCEPTCONN All Flag, Read("");
    SOL_SOCKET SO_ATTACH_BPF All NUMBER, Refused;
    SOL_SOCKET SO_ATTACH_FILTER All NUMBER, Refused;
    SOL_SOCKET SO_ATTACH_REUSEPORT_CBPF All NUMBER, Refused;
    SOL_SOCKET SO_ATTACH_REUSEPORT_EBPF All NUMBER, Refused;
    SOL_SOCKET SO_BINDTODEVICE All Text, Refused;
    SOL_SOCKET SO_BROADCAST All Flag, Works;
    SOL_SOCKET SO_BUSY_POLL All Number(0, c_int::MAX, 0), Moot("`--spin-us` has the time");
    SOL_SOCKET SO_COOKIE All NUMBER, Refused;
    SOL_SOCKET SO_DEBUG All Flag, Refused;
    SOL_SOCKET SO_DOMAIN All NUMBER, Read("");
    SOL_SOCKET SO_DONTROUTE All Flag, Refused;
    SOL_SOCKET SO_ERROR All NUMBER, Read("");
    SOL_SOCKET SO_INCOMING_CPU All NUMBER, Refused;
    SOL_SOCKET SO_KEEPALIVE All Flag, Partly(
        "the time is right, and one probe is sent in each time of idleness"
    );
    SOL_SOCKET SO_LINGER All Linger, Partly(
        "a time of 0 resets; with another one `close` does not wait, and what was sent \
         arrives"
    );
    SOL_SOCKET SO_MARK All NUMBER, Refused;
    SOL_SOCKET SO_MAX_PACING_RATE All NUMBER, Refused;
    SOL_SOCKET SO_OOBINLINE All Flag, Moot("urgent bytes are among the others; `MSG_OOB` fails");
    SOL_SOCKET SO_PEEK_OFF All NUMBER, Refused;
    SOL_SOCKET SO_PRIORITY All NUMBER, Moot(
        "there is no queueing discipline; for classes of the switch see `IP_TOS`"
    );
    SOL_SOCKET SO_PROTOCOL All NUMBER, Read("");
    SOL_SOCKET SO_RCVBUF All NUMBER, Partly(
        "4 KiB to 64 MiB, before `connect`, `listen` or `bind`; later the size stays, and \
         reading says so"
    );
    SOL_SOCKET SO_RCVBUFFORCE All NUMBER, Refused;
    SOL_SOCKET SO_RCVLOWAT All NUMBER, Refused;
    SOL_SOCKET SO_RCVTIMEO All Time, Works;
    SOL_SOCKET SO_REUSEADDR All Flag, Works;
    SOL_SOCKET SO_REUSEPORT All Flag, Partly(
        "within a process: its sockets share connections in turn, and datagrams by their \
         sender"
    );
    SOL_SOCKET SO_RXQ_OVFL All Flag, Refused;
    SOL_SOCKET SO_SNDBUF All NUMBER, Partly("as `SO_RCVBUF`");
    SOL_SOCKET SO_SNDBUFFORCE All NUMBER, Refused;
    SOL_SOCKET SO_SNDTIMEO All Time, Works;
    SOL_SOCKET SO_TIMESTAMP All Flag, Refused;
    SOL_SOCKET SO_TIMESTAMPING All NUMBER, Refused;
    SOL_SOCKET SO_TIMESTAMPNS All Flag, Refused;
    SOL_SOCKET SO_TXTIME All NUMBER, Refused;
    SOL_SOCKET SO_TYPE All NUMBER, Read("");
    SOL_SOCKET SO_ZEROCOPY All Flag, Refused;
    IPPROTO_TCP TCP_CONGESTION Stream Text, Read(
        "`none`: the window of the peer is the only limit"
    );
    IPPROTO_TCP TCP_CORK Stream Flag, Partly(
        "what is less than a segment waits for an acknowledgement, not for up to 200 ms"
    );
    IPPROTO_TCP TCP_DEFER_ACCEPT Stream NUMBER, Refused;
    IPPROTO_TCP TCP_FASTOPEN Stream NUMBER, Refused;
    IPPROTO_TCP TCP_FASTOPEN_CONNECT Stream Flag, Refused;
    IPPROTO_TCP TCP_INFO Stream NUMBER, Read("state, segment sizes and path MTU; the rest is 0");
    IPPROTO_TCP TCP_KEEPCNT Stream Number(1, 127, 9), Works;
    IPPROTO_TCP TCP_KEEPIDLE Stream Number(1, 32767, 7200), Works;
    IPPROTO_TCP TCP_KEEPINTVL Stream Number(1, 32767, 75), Partly("as `SO_KEEPALIVE`");
    IPPROTO_TCP TCP_LINGER2 Stream NUMBER, Refused;
    IPPROTO_TCP TCP_MAXSEG Stream NUMBER, Read("that of the MTU");
    IPPROTO_TCP TCP_MD5SIG Stream NUMBER, Refused;
    IPPROTO_TCP TCP_NODELAY Stream Flag, Works;
    IPPROTO_TCP TCP_NOTSENT_LOWAT Stream NUMBER, Refused;
    IPPROTO_TCP TCP_QUICKACK Stream Number(c_int::MIN, c_int::MAX, 0), Partly(
        "it stays as it was set; 0 at first"
    );
    IPPROTO_TCP TCP_SYNCNT Stream Number(1, 127, 6), Works;
    IPPROTO_TCP TCP_ULP Stream Text, Refused;
    IPPROTO_TCP TCP_USER_TIMEOUT Stream Number(0, c_int::MAX, 0), Works;
    IPPROTO_TCP TCP_WINDOW_CLAMP Stream NUMBER, Refused;
    IPPROTO_IP IP_ADD_MEMBERSHIP All NUMBER, Refused;
    IPPROTO_IP IP_BIND_ADDRESS_NO_PORT All Flag, Moot(
        "`bind` chooses a port; there are more than sockets"
    );
    IPPROTO_IP IP_FREEBIND All Flag, Refused;
    IPPROTO_IP IP_HDRINCL All Flag, Refused;
    IPPROTO_IP IP_MTU All NUMBER, Read("");
    IPPROTO_IP IP_MTU_DISCOVER All Number(0, 5, libc::IP_PMTUDISC_DO), NO_FRAGMENTS;
    IPPROTO_IP IP_MULTICAST_IF All NUMBER, Refused;
    IPPROTO_IP IP_MULTICAST_LOOP All Flag, Refused;
    IPPROTO_IP IP_MULTICAST_TTL All NUMBER, Refused;
    IPPROTO_IP IP_OPTIONS All NUMBER, Refused;
    IPPROTO_IP IP_PKTINFO All Flag, Refused;
    IPPROTO_IP IP_RECVERR All Flag, Refused;
    IPPROTO_IP IP_RECVTOS All Flag, Refused;
    IPPROTO_IP IP_RECVTTL All Flag, Refused;
    IPPROTO_IP IP_TOS All Byte(0, 255, 0), Works;
    IPPROTO_IP IP_TRANSPARENT All Flag, Refused;
    IPPROTO_IP IP_TTL All Byte(1, 255, 64), Works;
    IPPROTO_IPV6 IPV6_ADD_MEMBERSHIP Six NUMBER, Refused;
    IPPROTO_IPV6 IPV6_DONTFRAG Six Flag, Refused;
    IPPROTO_IPV6 IPV6_MTU_DISCOVER Six Number(0, 5, libc::IPV6_PMTUDISC_DO), NO_FRAGMENTS;
    IPPROTO_IPV6 IPV6_MULTICAST_HOPS Six NUMBER, Refused;
    IPPROTO_IPV6 IPV6_MULTICAST_IF Six NUMBER, Refused;
    IPPROTO_IPV6 IPV6_MULTICAST_LOOP Six Flag, Refused;
    IPPROTO_IPV6 IPV6_RECVERR Six Flag, Refused;
    IPPROTO_IPV6 IPV6_RECVHOPLIMIT Six Flag, Refused;
    IPPROTO_IPV6 IPV6_RECVPKTINFO Six Flag, Refused;
    IPPROTO_IPV6 IPV6_RECVTCLASS Six Flag, Refused;
    IPPROTO_IPV6 IPV6_TCLASS Six Number(-1, 255, 0), Works;
    IPPROTO_IPV6 IPV6_UNICAST_HOPS Six Number(-1, 255, 64), Works;
    IPPROTO_IPV6 IPV6_V6ONLY Six Flag, Works;
    SOL_UDP UDP_CORK All NUMBER, Refused;
    SOL_UDP UDP_GRO All NUMBER, Refused;
    SOL_UDP UDP_SEGMENT All NUMBER, Refused;
};

/// The option with a number of a level.
pub(super) fn find(level: c_int, number: c_int) -> Option<&'static Entry> {
    let mut all = ENTRIES.iter();
    all.find(|entry| (entry.level, entry.number) == (level, number))
}

/// The table of the user's document.
#[cfg(test)]
pub(super) fn document() -> String {
    use std::fmt::Write as _;
    let mut text = "| option | sockets | effect |\n|---|---|---|\n".to_owned();
    let mut refused = Vec::new();
    for entry in ENTRIES {
        let of = match entry.of {
            Of::All => "all",
            Of::Stream => "TCP",
            Of::Six => "`AF_INET6`",
        };
        let effect = match entry.fate {
            Works => "as in Linux".to_owned(),
            Partly(but) => format!("as in Linux, but: {but}"),
            Moot(why) => format!("accepted, changes nothing: {why}"),
            Read("") => "read only, as in Linux".to_owned(),
            Read(what) => format!("read only: {what}"),
            Refused => {
                refused.push(format!("`{}`", entry.name));
                continue;
            }
        };
        let _ = writeln!(text, "| `{}` | {of} | {effect} |", entry.name);
    }
    let _ = write!(
        text,
        "\nRefused with `ENOPROTOOPT`, as every option that is not named here: "
    );
    let _ = writeln!(text, "{}.", refused.join(", "));
    text
}
