//! The messages, and where the answers to them differ.

/// Names and messages, of which the answer to the last one is compared (see `message.rs`).
pub(crate) const VARIANTS: [(&str, &str); 161] = [
    ("discover", "53:01 list"),
    ("discover without a list", "53:01"),
    ("discover, empty list", "53:01 55:"),
    ("discover, list of the mask alone", "53:01 55:01"),
    ("discover, broadcast flag", "53:01 list flags=8000"),
    ("discover, other flags", "53:01 list flags=7fff"),
    ("discover, hops", "53:01 list hops=03"),
    ("discover, secs", "53:01 list secs=ffff"),
    (
        "discover, yiaddr and siaddr",
        "53:01 list yiaddr=10.7.0.99 siaddr=10.7.0.99",
    ),
    (
        "discover, names without overload",
        "53:01 list sname=737276 file=626f6f74",
    ),
    ("discover, ciaddr", "53:01 list ciaddr=10.7.0.99"),
    (
        "discover, ciaddr of another network",
        "53:01 list ciaddr=192.168.1.5",
    ),
    (
        "discover, remembers its address",
        "53:01; 53:03 50:$own 54:$server; 53:01 50:$own list",
    ),
    (
        "discover, asks for a free address",
        "53:01 50:0a070046 list",
    ),
    ("discover, asks for the gateway", "53:01 50:$server list"),
    (
        "discover, asks for another network",
        "53:01 50:c0a80105 list",
    ),
    ("discover, asked address of 3 bytes", "53:01 50:0a0700 list"),
    (
        "discover, asked address of 8 bytes",
        "53:01 50:0a0700460a070047 list",
    ),
    ("discover, asked address empty", "53:01 50: list"),
    (
        "discover, asked address twice",
        "53:01 50:0a070046 50:0a070047 list",
    ),
    (
        "discover, asked address in halves",
        "53:01 50:0a07 50:0046 list",
    ),
    ("discover, for this server", "53:01 54:$server list"),
    ("discover, for another server", "53:01 54:0a070009 list"),
    ("discover, client id of its MAC", "53:01 61:01$mac list"),
    ("discover, client id of text", "53:01 61:00666f6f list"),
    ("discover, client id of one byte", "53:01 61:01 list"),
    ("discover, client id empty", "53:01 61: list"),
    (
        "discover, client id twice",
        "53:01 61:01$mac 61:01$mac list",
    ),
    ("discover, host name", "53:01 12:7661 list"),
    ("discover, host name empty", "53:01 12: list"),
    ("discover, host name not ASCII", "53:01 12:ffe97c00 list"),
    ("discover, FQDN", "53:01 81:000000766d31 list"),
    ("discover, FQDN too short", "53:01 81:00 list"),
    ("discover, longest message 576", "53:01 57:0240 list"),
    ("discover, longest message 100", "53:01 57:0064 list"),
    ("discover, longest message of 1 byte", "53:01 57:05 list"),
    (
        "discover, vendor and user class",
        "53:01 60:4d534654 77:03616263 43:010203 list",
    ),
    (
        "discover, relay information without relay",
        "53:01 82:0102abcd list",
    ),
    ("discover, rapid commit", "53:01 80: list"),
    ("discover, rapid commit of 2 bytes", "53:01 80:0101 list"),
    ("discover, auto-configure", "53:01 116:01 list"),
    ("discover, subnet selection", "53:01 118:c0a80100 list"),
    ("discover, asks for a minute", "53:01 51:0000003c list"),
    (
        "discover, asks for an endless time",
        "53:01 51:ffffffff list",
    ),
    ("discover, time of 2 bytes", "53:01 51:003c list"),
    (
        "discover, unknown options",
        "53:01 224:00112233 250: 175:0101 list",
    ),
    ("discover, longest option", "53:01 224:*255 list"),
    ("discover, type twice", "53:01 53:01 list"),
    (
        "discover, type first discover then request",
        "53:01 53:03 list",
    ),
    ("discover, type last", "list 61:01$mac 53:01"),
    ("discover, pads", "0 0 53:01 0 0 0 list 0"),
    ("discover, no end", "53:01 list noend exact"),
    ("discover, no end, padded", "53:01 list noend"),
    ("discover, type behind the end", "list end 53:01"),
    (
        "discover, option longer than the message",
        "53:01 list raw=e0ff01 noend exact",
    ),
    (
        "discover, type longer than the message",
        "raw=35ff01 noend exact",
    ),
    (
        "discover, code without a length",
        "53:01 list raw=e0 noend exact",
    ),
    ("discover, no options at all", "noend exact"),
    ("discover, type in the file", "52:01 file=350101ff list"),
    (
        "discover, type in the server name",
        "52:02 sname=350101ff list",
    ),
    (
        "discover, type in both",
        "52:03 file=350101ff sname=350101ff list",
    ),
    (
        "discover, asked address in the file",
        "53:01 52:01 file=32040a070046ff list",
    ),
    (
        "discover, overload without end",
        "53:01 52:01 file=0c0176 list",
    ),
    (
        "discover, overload in overload",
        "53:01 52:01 file=340102ff sname=3204ff list",
    ),
    ("discover, overload 0", "53:01 52:00 list"),
    ("discover, overload 4", "53:01 52:04 list"),
    ("discover, overload of 2 bytes", "53:01 52:0001 list"),
    ("discover, overload empty", "53:01 52: list"),
    (
        "discover, broken options in the file",
        "53:01 52:01 file=e0ff list",
    ),
    ("discover, type of 2 bytes", "53:0101 list"),
    ("discover, type empty", "53: list"),
    ("type 0", "53:00 list"),
    ("type offer", "53:02 list"),
    ("type nak", "53:06 list"),
    ("type 9", "53:09 list"),
    ("type lease query", "53:0a list"),
    ("type 255", "53:ff list"),
    ("discover, exactly 300 bytes", "53:01 list pad=300"),
    ("discover, 1400 bytes", "53:01 list pad=1400"),
    ("discover, from port 1068", "53:01 list port=1068"),
    (
        "discover, to the server's address",
        "53:01 list from=10.7.0.14 to=server",
    ),
    ("discover, from its address", "53:01 list from=10.7.0.99"),
    ("request, selecting", "53:01; 53:03 50:$own 54:$server list"),
    (
        "request, selecting, server twice",
        "53:01; 53:03 50:$own 54:$server 54:$server list",
    ),
    (
        "request, selecting, server and another",
        "53:01; 53:03 50:$own 54:$server 54:0a070009 list",
    ),
    (
        "request, selecting another server",
        "53:01; 53:03 50:$own 54:0a070009 list",
    ),
    (
        "request, selecting, server of 3 bytes",
        "53:01; 53:03 50:$own 54:0a0700 list",
    ),
    (
        "request, selecting, address twice",
        "53:01; 53:03 50:$own 50:$own 54:$server list",
    ),
    (
        "request, selecting another free address",
        "53:01; 53:03 50:0a070048 54:$server list",
    ),
    (
        "request, selecting without an offer",
        "53:03 50:0a07004d 54:$server list",
    ),
    (
        "request, selecting another network",
        "53:01; 53:03 50:c0a80105 54:$server list",
    ),
    (
        "request, selecting, with ciaddr",
        "53:01; 53:03 50:$own 54:$server ciaddr=$own list",
    ),
    ("request, server alone", "53:01; 53:03 54:$server list"),
    ("request, nothing", "53:01; 53:03 list"),
    (
        "request, rebooting",
        "53:01; 53:03 50:$own 54:$server; 53:03 50:$own list",
    ),
    (
        "request, rebooting, broadcast flag",
        "53:01; 53:03 50:$own 54:$server; 53:03 50:$own flags=8000 list",
    ),
    ("request, rebooting, never seen", "53:03 50:0a070049 list"),
    (
        "request, rebooting in another network",
        "53:03 50:c0a80105 list",
    ),
    (
        "request, rebooting with the gateway's",
        "53:03 50:$server list",
    ),
    (
        "request, rebooting, address of 5 bytes",
        "53:01; 53:03 50:$own 54:$server; 53:03 50:$own00 list",
    ),
    (
        "request, renewing",
        "53:01; 53:03 50:$own 54:$server; 53:03 ciaddr=$own from=$own to=server list",
    ),
    (
        "request, renewing, broadcast flag",
        "53:01; 53:03 50:$own 54:$server; 53:03 ciaddr=$own from=$own to=server flags=8000 list",
    ),
    (
        "request, rebinding",
        "53:01; 53:03 50:$own 54:$server; 53:03 ciaddr=$own from=$own list",
    ),
    (
        "request, renewing with the address",
        "53:01; 53:03 50:$own 54:$server; 53:03 50:$own ciaddr=$own from=$own to=server list",
    ),
    (
        "request, renewing with the server",
        "53:01; 53:03 50:$own 54:$server; 53:03 54:$server ciaddr=$own from=$own to=server list",
    ),
    (
        "request, renewing with both",
        "53:01; 53:03 50:$own 54:$server; 53:03 50:$own 54:$server ciaddr=$own from=$own to=server list",
    ),
    (
        "request, renewing with another address",
        "53:01; 53:03 50:$own 54:$server; 53:03 50:0a07004a ciaddr=$own from=$own to=server list",
    ),
    (
        "request, renewing with another network",
        "53:01; 53:03 50:$own 54:$server; 53:03 50:c0a80105 ciaddr=$own from=$own to=server list",
    ),
    (
        "request, renewing with another server",
        "53:01; 53:03 50:$own 54:$server; 53:03 54:0a070009 ciaddr=$own from=$own list",
    ),
    (
        "request, renewing with an empty address",
        "53:01; 53:03 50:$own 54:$server; 53:03 50: ciaddr=$own from=$own list",
    ),
    (
        "request, renewing with address 0",
        "53:01; 53:03 50:$own 54:$server; 53:03 50:00000000 ciaddr=$own from=$own list",
    ),
    (
        "request, renewing with server 0",
        "53:01; 53:03 50:$own 54:$server; 53:03 54:00000000 ciaddr=$own from=$own list",
    ),
    (
        "request, renewing, never seen",
        "53:03 ciaddr=10.7.0.75 from=10.7.0.75 list",
    ),
    (
        "request, renewing in another network",
        "53:03 ciaddr=192.168.1.5 from=192.168.1.5 list",
    ),
    (
        "request, rebinding from 0.0.0.0",
        "53:01; 53:03 50:$own 54:$server; 53:03 ciaddr=$own list",
    ),
    (
        "decline",
        "53:01; 53:03 50:$own 54:$server; 53:04 50:$own 54:$server",
    ),
    (
        "decline without a server",
        "53:01; 53:03 50:$own 54:$server; 53:04 50:$own",
    ),
    (
        "decline without an address",
        "53:01; 53:03 50:$own 54:$server; 53:04 54:$server ciaddr=$own",
    ),
    (
        "release",
        "53:01; 53:03 50:$own 54:$server; 53:07 54:$server ciaddr=$own from=$own to=server",
    ),
    (
        "release without a server",
        "53:01; 53:03 50:$own 54:$server; 53:07 ciaddr=$own from=$own to=server",
    ),
    (
        "release with an address",
        "53:01; 53:03 50:$own 54:$server; 53:07 50:$own 54:$server ciaddr=$own from=$own to=server",
    ),
    (
        "inform",
        "53:01; 53:03 50:$own 54:$server; 53:08 ciaddr=$own from=$own list",
    ),
    (
        "inform with a fixed address",
        "53:08 ciaddr=10.7.0.14 from=10.7.0.14 list",
    ),
    ("inform without ciaddr", "53:08 from=10.7.0.14 list"),
    (
        "inform in another network",
        "53:08 ciaddr=192.168.1.5 from=192.168.1.5 list",
    ),
    (
        "inform with an address",
        "53:08 50:0a07000e ciaddr=10.7.0.14 from=10.7.0.14 list",
    ),
    (
        "inform with a server",
        "53:08 54:$server ciaddr=10.7.0.14 from=10.7.0.14 to=server list",
    ),
    (
        "inform, broadcast flag",
        "53:08 flags=8000 ciaddr=10.7.0.14 from=10.7.0.14 list",
    ),
    (
        "relayed, address of the network",
        "53:01 giaddr=10.7.0.14 list",
    ),
    (
        "relayed, address of another network",
        "53:01 giaddr=192.168.1.1 list",
    ),
    ("relayed, the server's address", "53:01 giaddr=$server list"),
    (
        "relayed, the guest's own address",
        "53:01; 53:03 50:$own 54:$server; 53:03 ciaddr=$own giaddr=$own from=$own list",
    ),
    (
        "relayed request, selecting",
        "53:01; 53:03 50:$own 54:$server giaddr=10.7.0.14 hops=01 list",
    ),
    (
        "relayed with agent information",
        "53:01 giaddr=10.7.0.14 82:0102abcd list",
    ),
    (
        "another station's hardware address",
        "53:01 chaddr=020000009999 list",
    ),
    ("hardware address 0", "53:01 chaddr=000000000000 list"),
    ("hardware address of no bytes", "53:01 hlen=00 list"),
    (
        "hardware address of no bytes, with client id",
        "53:01 hlen=00 61:01$mac list",
    ),
    ("hardware address of 16 bytes", "53:01 hlen=10 list"),
    ("hardware address of 17 bytes", "53:01 hlen=11 list"),
    ("hardware type 0", "53:01 htype=00 flags=8000 list"),
    ("hardware type 6", "53:01 htype=06 flags=8000 list"),
    (
        "hardware type 32",
        "53:01 htype=20 flags=8000 61:01$mac list",
    ),
    ("a reply", "53:01 op=02 list"),
    ("operation 0", "53:01 op=00 list"),
    ("cookie 0", "53:01 cookie=00000000 list"),
    ("cookie wrong", "53:01 cookie=01020304 list"),
    ("BOOTP", "cookie=63825363"),
    ("BOOTP with options", "12:766d31 list"),
    ("BOOTP without a cookie", "cookie=00000000 noend"),
    ("BOOTP, broadcast flag", "flags=8000"),
    ("BOOTP of 240 bytes", "exact"),
    ("BOOTP of 236 bytes", "exact noend cut=236"),
    ("BOOTP of 200 bytes", "exact noend cut=200"),
    ("BOOTP with its address", "ciaddr=10.7.0.76 from=10.7.0.76"),
    (
        "decline, then discover",
        "53:01; 53:03 50:$own 54:$server; 53:04 50:$own 54:$server; 53:01 list",
    ),
    (
        "decline without a server, then discover",
        "53:01; 53:03 50:$own 54:$server; 53:04 50:$own; 53:01 list",
    ),
    (
        "decline at another server, then discover",
        "53:01; 53:03 50:$own 54:$server; 53:04 50:$own 54:0a070009; 53:01 list",
    ),
    (
        "release, then discover",
        "53:01; 53:03 50:$own 54:$server; 53:07 54:$server ciaddr=$own from=$own; 53:01 list",
    ),
    ("BOOTP twice", "exact; exact"),
    ("BOOTP, then discover", "exact; 53:01 list"),
];

/// A variant whose answers differ.
pub(crate) struct Different {
    pub(crate) name: &'static str,
    pub(crate) theirs: &'static str,
    pub(crate) own: &'static str,
    pub(crate) why: &'static str,
}

const LIST: &str = "a guest needs the MTU whether it asks for it or not";
const CHOSEN: &str = "the client has chosen another server (RFC 2131, section 4.3.2)";
const MADE: &str = "addresses are made of MAC addresses: a guest chooses none";
const HAS: &str = "the address that the client has decides";
const STATION: &str = "else a guest could take the addresses of all";

pub(crate) const DIFFERENT: [Different; 15] = [
    Different {
        name: "discover, empty list",
        theirs: "offer, new address, to client, options [1, 28, 51, 53, 54, 58, 59]",
        own: "offer, new address, to client",
        why: LIST,
    },
    Different {
        name: "discover, list of the mask alone",
        theirs: "offer, new address, to client, options [1, 28, 51, 53, 54, 58, 59]",
        own: "offer, new address, to client",
        why: LIST,
    },
    Different {
        name: "discover, subnet selection",
        theirs: "nothing",
        own: "offer, new address, to client",
        why: "a client without a relay has no other network",
    },
    Different {
        name: "request, selecting another server",
        theirs: "nak, no address, to all",
        own: "nothing",
        why: CHOSEN,
    },
    Different {
        name: "request, selecting another free address",
        theirs: "ack, new address, to client",
        own: "nak, no address, to all",
        why: MADE,
    },
    Different {
        name: "request, rebooting, never seen",
        theirs: "ack, new address, to client",
        own: "nak, no address, to all",
        why: MADE,
    },
    Different {
        name: "request, renewing with another address",
        theirs: "nak, no address, to all",
        own: "ack, own address, to client",
        why: HAS,
    },
    Different {
        name: "request, renewing with another network",
        theirs: "nak, no address, to all",
        own: "ack, own address, to client",
        why: HAS,
    },
    Different {
        name: "request, renewing with address 0",
        theirs: "nak, no address, to all",
        own: "ack, own address, to client",
        why: HAS,
    },
    Different {
        name: "inform",
        theirs: "ack, no address, to client, options [1, 3, 6, 15, 26, 28, 51, 53, 54]",
        own: "ack, no address, to client, options [1, 3, 6, 15, 26, 28, 53, 54]",
        why: "without a lease there is no time of one (RFC 2131, section 4.3.5)",
    },
    Different {
        name: "inform with an address",
        theirs: "nothing",
        own: "ack, no address, to client, options [1, 3, 6, 15, 26, 28, 53, 54]",
        why: HAS,
    },
    Different {
        name: "another station's hardware address",
        theirs: "offer, new address, to client",
        own: "nothing",
        why: STATION,
    },
    Different {
        name: "hardware address 0",
        theirs: "offer, new address, to client",
        own: "nothing",
        why: STATION,
    },
    Different {
        name: "hardware address of no bytes, with client id",
        theirs: "offer, new address, to all",
        own: "nothing",
        why: STATION,
    },
    Different {
        name: "decline without a server, then discover",
        theirs: "offer, own address, to client",
        own: "offer, new address, to client",
        why: "the client does not use the address all the same",
    },
];
