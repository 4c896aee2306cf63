//! Reads pcapng files of one section with one interface (draft-ietf-opsawg-pcapng), and believes
//! nothing: what is not as the draft says fails the test.

/// Which way a frame went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Inbound.
    In,
    /// Outbound.
    Out,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Its bytes, as far as they are there.
    pub bytes: Vec<u8>,
    /// Its length.
    pub len: u32,
    /// From its flags.
    pub way: Way,
    /// Why it was dropped, from a comment.
    pub dropped: Option<String>,
}

/// Contents of a statistics block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// `isb_ifrecv`.
    pub meant: u64,
    /// `isb_ifdrop`.
    pub lost: u64,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Section {
    /// The interface's name.
    pub interface: String,
    /// Its filter.
    pub filter: String,
    /// Frames in their order.
    pub packets: Vec<Packet>,
    /// The file's end, if it has one.
    pub statistics: Option<Statistics>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn time_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// The blocks of a file, each without its lengths.
fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
    let mut all = Vec::new();
    while !file.is_empty() {
        let len = u32_at(file, 4) as usize;
        assert!(len >= 12 && len.is_multiple_of(4), "a block of {len} bytes");
        let (block, rest) = file.split_at_checked(len).expect("whole blocks");
        assert_eq!(u32_at(block, len - 4) as usize, len, "lengths at both ends");
        all.push((u32_at(block, 0), &block[8..len - 4]));
        file = rest;
    }
    all
}

fn options(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    loop {
        let (code, len) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
        if code == 0 {
            assert_eq!((len, rest.len()), (0, 4), "the end of options is the end");
            return all;
        }
        all.push((code, &rest[4..4 + len]));
        let padding = &rest[4 + len..4 + len.next_multiple_of(4)];
        assert!(padding.iter().all(|byte| *byte == 0), "padding is zero");
        rest = &rest[4 + len.next_multiple_of(4)..];
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("options are UTF-8")
}

fn packet(body: &[u8]) -> Packet {
    assert_eq!(u32_at(body, 0), 0, "of the only interface");
    let (held, len) = (u32_at(body, 12), u32_at(body, 16));
    assert!(held <= len, "{held} bytes of {len}");
    let held = held as usize;
    let (mut way, mut dropped) = (None, None);
    for (code, value) in options(&body[20 + held.next_multiple_of(4)..]) {
        match code {
            1 => {
                let comment = text(value);
                dropped = dropped.or(comment.strip_prefix("dropped: ").map(str::to_owned));
            }
            2 => {
                way = match u32_at(value, 0) {
                    1 => Some(Way::In),
                    2 => Some(Way::Out),
                    other => panic!("flags {other}"),
                }
            }
            other => panic!("option {other} of a packet"),
        }
    }
    Packet {
        at_ns: time_at(body, 4),
        bytes: body[20..20 + held].to_vec(),
        len,
        way: way.expect("a direction"),
        dropped,
    }
}

fn statistics(body: &[u8]) -> Statistics {
    let mut statistics = Statistics::default();
    for (code, value) in options(&body[12..]) {
        let value = u64::from_ne_bytes(value.try_into().expect("eight bytes"));
        match code {
            4 => statistics.meant = value,
            5 => statistics.lost = value,
            _ => {}
        }
    }
    statistics
}

/// Reads a file.
///
/// # Panics
/// When it is not as it has to be.
pub fn read(file: &[u8]) -> Section {
    let mut section = Section::default();
    for (at, (kind, body)) in blocks(file).into_iter().enumerate() {
        assert!(section.statistics.is_none(), "statistics come last");
        match (at, kind) {
            (0, 0x0a0d_0d0a) => {
                assert_eq!(u32_at(body, 0), 0x1a2b_3c4d, "the byte order");
                assert_eq!((u16_at(body, 4), u16_at(body, 6)), (1, 0), "the version");
                options(&body[16..]);
            }
            (1, 1) => {
                assert_eq!(u16_at(body, 0), 1, "Ethernet");
                for (code, value) in options(&body[8..]) {
                    match code {
                        2 => section.interface = text(value),
                        9 => assert_eq!(value, [9], "nanoseconds"),
                        11 => section.filter = text(value.strip_prefix(&[0]).expect("a text")),
                        other => panic!("option {other} of an interface"),
                    }
                }
            }
            (2.., 6) => section.packets.push(packet(body)),
            (2.., 5) => section.statistics = Some(statistics(body)),
            other => panic!("a block {other:?}"),
        }
    }
    section
}
