//! Seeds of the targets for user networks: steps of eight bytes, see `src/usernet.rs`.

use usernet::{FlowRecord, MappingRecord, Record};

use super::save;

const SYN: [u8; 8] = [0, 0, 0x02, 10, 0, 0, 0, 180];
const ACK: [u8; 8] = [0, 0, 0x10, 0, 0, 0, 0, 0];
const DATA: [u8; 8] = [0, 0, 0x18, 0, 0, 10, 200, 200];
const FIN: [u8; 8] = [0, 0, 0x11, 0, 0, 0, 0, 200];
/// A SYN and all that follows over IPv6, on another port.
const SYN6: [u8; 8] = [0, 5, 0x02, 10, 0, 0, 0, 180];
const ACK6: [u8; 8] = [0, 5, 0x10, 0, 0, 0, 0, 0];
/// Bytes of the first flow are peeked; its end is found.
const PEEK: [u8; 8] = [6, 0, 2, 5, 0, 0, 0, 0];
const END: [u8; 8] = [6, 0, 0, 0, 0, 0, 0, 0];
const PASS: [u8; 8] = [5, 10, 1, 0, 0, 0, 0, 0];
/// The first socket is connected; it has room, and bytes.
const CONNECTED: [u8; 8] = [8, 0, 0, 100, 0, 0, 0, 0];
const ROOM: [u8; 8] = [8, 0, 2, 100, 0, 0, 0, 0];
const READABLE: [u8; 8] = [8, 0, 3, 0, 0, 0, 0, 0];
const RESET: [u8; 8] = [8, 0, 4, 0, 0, 0, 0, 0];
/// A datagram to a server outside, and one back.
const DATAGRAM: [u8; 8] = [2, 0, 0, 0, 0, 5, 0, 0];
const UNDELIVERED: [u8; 8] = [10, 0, 0, 1, 180, 5, 0, 0];
const BACK: [u8; 8] = [10, 0, 0, 0, 0, 0, 0, 0];
/// A question for a name outside, and its answer without records.
const QUESTION: [u8; 8] = [2, 104, 1, 9, 2, 0, 0, 0];
const ANSWER: [u8; 8] = [11, 0, 0, 255, 0x80, 0, 0x80, 0];
/// An error, after which the next resolver is asked, and no answer of that one.
const REFUSED: [u8; 8] = [11, 0, 0, 255, 0x80, 0, 5, 0];
const CLOSED: [u8; 8] = [11, 0, 0, 0, 0, 14, 0, 0];
/// A socket of a forward.
const ACCEPTED: [u8; 8] = [12, 1, 0, 100, 0, 0, 0, 0];
const SYN_ACK: [u8; 8] = [0, 1, 0x12, 10, 0, 0, 0, 180];

/// Errors about what is on its way to the guest: its next bytes, by IPv4 and IPv6, and a datagram.
const TOO_BIG: [u8; 8] = [3, 0, 3, 4, 100, 5, 20, 1];
const TOO_BIG6: [u8; 8] = [3, 5, 2, 0, 100, 5, 20, 1];
const TOO_BIG_DATAGRAM: [u8; 8] = [3, 0, 3, 4, 0, 5, 20, 3];
const UNREACHABLE: [u8; 8] = [3, 1, 3, 1, 1, 0, 0, 1];
/// A datagram whose time to live ends at the gateway.
const LAST_HOP: [u8; 8] = [2, 0, 0, 0, 0, 5, 1, 0];

/// Writes the seeds.
pub(super) fn seeds() {
    let stream = [SYN, ACK, DATA, PEEK, ACK, PASS, PEEK];
    let both = [
        SYN, ACK, PEEK, SYN6, ACK6, DATA, FIN, ACK, END, ACK, PASS, PASS,
    ];
    let services = [
        // ARP, DHCP with its variants, questions, echo, neighbour solicitation.
        [3, 0, 0, 2, 0, 0, 0, 0],
        [2, 160, 2, 1, 20, 0, 0, 0],
        [2, 160, 2, 3, 20, 0, 0, 0],
        [2, 160, 2, 3, 20, 1, 0, 0],
        [2, 160, 2, 1, 20, 2, 77, 0],
        [2, 160, 2, 1, 20, 4, 20, 0],
        [2, 160, 2, 0, 20, 8, 0, 0],
        [2, 160, 2, 3, 20, 16, 20, 0],
        QUESTION,
        [2, 104, 1, 9, 3, 0, 0, 0],
        [3, 32, 8, 0, 1, 20, 0, 0],
        [3, 36, 135, 0, 0, 16, 0, 0],
        PASS,
    ];
    let edited = [
        [0x80, 0, 2, 0, 0, 47, 0xff, 0],
        [0x40, 0, 2, 0, 0, 50, 0, 0],
    ];
    save("usernet_frames", "stream", stream.as_flattened());
    save("usernet_frames", "both", both.as_flattened());
    save("usernet_frames", "services", services.as_flattened());
    save("usernet_frames", "edited", edited.as_flattened());
    let errors = [
        SYN,
        ACK,
        PEEK,
        TOO_BIG,
        PEEK,
        SYN6,
        ACK6,
        TOO_BIG6,
        PASS,
        LAST_HOP,
        DATAGRAM,
        TOO_BIG_DATAGRAM,
        PASS,
    ];
    save("usernet_frames", "errors", errors.as_flattened());
    let sockets = [
        SYN, CONNECTED, ACK, DATA, ROOM, READABLE, PEEK, ACK, PEEK, RESET,
    ];
    let question = [DATAGRAM, BACK, UNDELIVERED, QUESTION, ANSWER];
    let forward = [ACCEPTED, SYN_ACK, PEEK, READABLE, END, ACK, PASS];
    let unreachable = [ACCEPTED, PASS, UNREACHABLE, PASS];
    save("usernet_peer", "unreachable", unreachable.as_flattened());
    save("usernet_peer", "sockets", sockets.as_flattened());
    save("usernet_peer", "question", question.as_flattened());
    let resolvers = [QUESTION, REFUSED, CLOSED, QUESTION, ANSWER];
    save("usernet_peer", "resolvers", resolvers.as_flattened());
    save("usernet_peer", "forward", forward.as_flattened());
    records([ACK, PEEK, DATA, READABLE, PEEK, ACK, PASS].as_flattened());
}

/// Records of two flows, of which the second is foreign, and of a mapping; and steps.
fn records(steps: &[u8]) {
    let record = |guest: &str| Record {
        guest: guest.parse().expect("an address"),
        peer: "192.0.2.1:80".parse().expect("an address"),
        station: wire::MacAddr([0x52, 0x54, 0, 0, 0, 15]),
        connected: true,
        iss: 1000,
        irs: 2000,
        mss: 1460,
        scale: Some((7, 8)),
    };
    let progress = [0, 0, 0, 40, 0, 100, 0, 0];
    let mut bytes = vec![3];
    for guest in ["10.0.2.15:1000", "10.9.9.9:1000"] {
        bytes.extend(FlowRecord::Flow(record(guest)).encode());
        bytes.extend(progress);
    }
    let mapping = MappingRecord {
        guest: "10.0.2.15:1001".parse().expect("an address"),
        peer: "192.0.2.1:123".parse().expect("an address"),
        station: wire::MacAddr([0x52, 0x54, 0, 0, 0, 15]),
        forwarded: None,
    };
    bytes.extend(FlowRecord::Mapping(mapping).encode());
    bytes.extend(progress);
    bytes.extend(steps);
    save("user_records", "three", &bytes);
}
