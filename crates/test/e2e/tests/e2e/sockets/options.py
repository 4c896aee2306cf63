"""What Linux, or a library in its place, does with options of sockets, a line for each: what is read at first, what
becomes of numbers and of short values, and which sockets can have one port."""

import errno
import itertools
import socket
import struct

SOL, TCP, IP, IP6 = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
NUMBERS = (1, 0, -1, 300)
KINDS = {
    "tcp4": (socket.AF_INET, socket.SOCK_STREAM),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM),
    "udp4": (socket.AF_INET, socket.SOCK_DGRAM),
    "udp6": (socket.AF_INET6, socket.SOCK_DGRAM),
}
# Level, name, number, and the numbers that are set: those that need no right.
OPTIONS = (
    (SOL, "SO_REUSEADDR", 2, NUMBERS),
    (SOL, "SO_TYPE", 3, NUMBERS),
    (SOL, "SO_ERROR", 4, NUMBERS),
    (SOL, "SO_DONTROUTE", 5, NUMBERS),
    (SOL, "SO_BROADCAST", 6, NUMBERS),
    (SOL, "SO_KEEPALIVE", 9, NUMBERS),
    (SOL, "SO_OOBINLINE", 10, NUMBERS),
    (SOL, "SO_PRIORITY", 12, (1, 0, 6)),
    (SOL, "SO_REUSEPORT", 15, NUMBERS),
    (SOL, "SO_RCVLOWAT", 18, (1, 0)),
    (SOL, "SO_SNDLOWAT", 19, (1, 0)),
    (SOL, "SO_TIMESTAMP", 29, (1, 0)),
    (SOL, "SO_ACCEPTCONN", 30, NUMBERS),
    (SOL, "SO_PROTOCOL", 38, NUMBERS),
    (SOL, "SO_DOMAIN", 39, NUMBERS),
    (SOL, "SO_BUSY_POLL", 46, (0, -1)),
    (SOL, "SO_ZEROCOPY", 60, (1, 0)),
    (SOL, "an unknown option", 9999, NUMBERS),
    (TCP, "TCP_NODELAY", 1, NUMBERS),
    (TCP, "TCP_CORK", 3, NUMBERS),
    (TCP, "TCP_KEEPIDLE", 4, (1, 0, -1, 32767, 32768)),
    (TCP, "TCP_KEEPINTVL", 5, (1, 0, -1, 32767, 32768)),
    (TCP, "TCP_KEEPCNT", 6, (1, 0, -1, 127, 128)),
    (TCP, "TCP_SYNCNT", 7, (1, 0, -1, 127, 128)),
    (TCP, "TCP_LINGER2", 8, (1,)),
    (TCP, "TCP_DEFER_ACCEPT", 9, (1, 0)),
    (TCP, "TCP_WINDOW_CLAMP", 10, (0,)),
    (TCP, "TCP_QUICKACK", 12, (1, 0)),
    (TCP, "TCP_USER_TIMEOUT", 18, (1, 0, -1, 300)),
    (TCP, "TCP_FASTOPEN", 23, (1, 0)),
    (TCP, "TCP_NOTSENT_LOWAT", 25, (1, 0)),
    (TCP, "an unknown option", 9999, NUMBERS),
    (IP, "IP_TOS", 1, (1, 0, 16, 184, 300)),
    (IP, "IP_TTL", 2, NUMBERS),
    (IP, "IP_PKTINFO", 8, (1, 0)),
    (IP, "IP_MTU_DISCOVER", 10, (0, 1, 2, 3, 4, 5, 6, -1)),
    (IP, "IP_RECVERR", 11, (1, 0)),
    (IP, "IP_MTU", 14, NUMBERS),
    (IP, "IP_FREEBIND", 15, (1, 0)),
    (IP, "IP_BIND_ADDRESS_NO_PORT", 24, NUMBERS),
    (IP, "an unknown option", 9999, NUMBERS),
    (IP6, "IPV6_UNICAST_HOPS", 16, NUMBERS),
    (IP6, "IPV6_MTU_DISCOVER", 23, (0, 1, 2, 3, 4, 5, 6, -1)),
    (IP6, "IPV6_RECVERR", 25, (1, 0)),
    (IP6, "IPV6_V6ONLY", 26, NUMBERS),
    (IP6, "IPV6_TCLASS", 67, NUMBERS),
    (IP6, "an unknown option", 9999, NUMBERS),
)
PORT = 7777


def outcome(call):
    try:
        got = call()
        return "ok" if got is None else str(got)
    except OSError as error:
        return errno.errorcode[error.errno]


def one(kind, level, name, number, values):
    with socket.socket(*KINDS[kind]) as sock:
        read = lambda: sock.getsockopt(level, number)
        parts = [outcome(read)]
        for value in values:
            done = outcome(lambda: sock.setsockopt(level, number, value))
            parts.append(f"{value}:{done}" + (f"/{outcome(read)}" if done == "ok" else ""))
        for short in (b"\1", b"\1\0\0"):
            parts.append(f"{len(short)} bytes:{outcome(lambda: sock.setsockopt(level, number, short))}")
        print(f"{kind} {name}: {' '.join(parts)}")


def others(kind):
    with socket.socket(*KINDS[kind]) as sock:
        for name, number, format, values in (
            ("SO_LINGER", 13, "ii", ((1, 0), (1, 5), (0, 5))),
            ("SO_RCVTIMEO", 20, "qq", ((1, 500000), (0, 1000000), (0, -1), (0, 0))),
            ("SO_SNDTIMEO", 21, "qq", ((1, 500000), (0, 1000000), (0, -1), (0, 0))),
        ):
            size = struct.calcsize(format)
            read = lambda: struct.unpack(format, sock.getsockopt(SOL, number, size))
            parts = [outcome(read)]
            for value in values:
                done = outcome(lambda: sock.setsockopt(SOL, number, struct.pack(format, *value)))
                parts.append(f"{value}:{done}/{outcome(read)}")
            print(f"{kind} {name}: {' '.join(parts)}")
        for name, number in (("SO_RCVBUF", 8), ("SO_SNDBUF", 7)):
            sock.setsockopt(SOL, number, 50000)
            print(f"{kind} {name}: {sock.getsockopt(SOL, number)}")


def sharing(kind, listens, first_options, second_options):
    any_address = ("::", PORT) if kind.endswith("6") else ("0.0.0.0", PORT)
    with socket.socket(*KINDS[kind]) as first, socket.socket(*KINDS[kind]) as second:
        for sock, options in ((first, first_options), (second, second_options)):
            for option in options:
                sock.setsockopt(SOL, option, 1)
        first.bind(any_address)
        if listens:
            first.listen()
        parts = [outcome(lambda: second.bind(any_address))]
        if parts == ["ok"] and kind.startswith("tcp"):
            parts.append(outcome(second.listen))
            if not listens:
                parts.append(outcome(first.listen))
        return " ".join(parts)


def families(kind, only, six_first):
    six, four = KINDS[kind + "6"], KINDS[kind + "4"]
    with socket.socket(*six) as six, socket.socket(*four) as four:
        six.setsockopt(IP6, socket.IPV6_V6ONLY, only)
        ends = [(six, ("::", PORT)), (four, ("0.0.0.0", PORT))]
        parts = []
        for sock, address in ends if six_first else reversed(ends):
            parts.append(outcome(lambda: sock.bind(address)))
            if parts[-1] == "ok" and kind == "tcp":
                parts.append(outcome(sock.listen))
        return " ".join(parts)


for kind in KINDS:
    for option in OPTIONS:
        one(kind, *option)
    others(kind)
SETS = {"none": (), "address": (2,), "port": (15,), "both": (2, 15)}
for kind, (a, first), (b, second) in itertools.product(("tcp4", "tcp6", "udp4"), SETS.items(), SETS.items()):
    for listens in (False, True) if kind.startswith("tcp") else (False,):
        how = "listening" if listens else "bound"
        print(f"{kind} {how} with {a}, then {b}: {sharing(kind, listens, first, second)}")
for kind, only, six_first in itertools.product(("tcp", "udp"), (0, 1), (False, True)):
    order = "IPv6, then IPv4" if six_first else "IPv4, then IPv6"
    print(f"{kind} {order}, only {only}: {families(kind, only, six_first)}")
