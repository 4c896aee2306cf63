//! Reads pcapng files of one section with one interface (draft-ietf-opsawg-pcapng), and believes
//! nothing: what is not as the draft says fails the test.

use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{
    Block, EnhancedPacketBlock, InterfaceDescriptionBlock, InterfaceStatisticsBlock, Linktype,
    PcapNGOption, parse_block_le,
};

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

/// The blocks of a file.
fn blocks(mut file: &[u8]) -> Vec<Block<'_>> {
    let mut all = Vec::new();
    while !file.is_empty() {
        let (rest, block) = parse_block_le(file).expect("whole blocks");
        let block_bytes = &file[..file.len() - rest.len()];
        assert!(block_bytes.len().is_multiple_of(4));
        let lengths = [&block_bytes[4..8], &block_bytes[block_bytes.len() - 4..]];
        assert_eq!(lengths[0], lengths[1], "lengths at both ends");
        all.push(block);
        file = rest;
    }
    all
}

/// Codes and values of options.
fn options<'a>(all: &'a [PcapNGOption<'_>]) -> Vec<(u16, &'a [u8])> {
    let all = all.iter().map(|option| {
        let value = option.as_bytes().expect("a value");
        let padding = &option.value()[value.len()..];
        assert!(padding.iter().all(|byte| *byte == 0), "padding is zero");
        (option.code.0, value)
    });
    let mut all: Vec<_> = all.collect();
    let end = all.pop();
    assert_eq!(end, Some((0, &[][..])), "the end of options is the end");
    assert!(all.iter().all(|(code, _)| *code != 0));
    all
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("options are UTF-8")
}

fn packet(block: &EnhancedPacketBlock<'_>) -> Packet {
    assert_eq!(block.if_id, 0, "of the only interface");
    assert!(block.caplen <= block.origlen);
    let (mut way, mut dropped) = (None, None);
    for (code, value) in options(&block.options) {
        match code {
            1 => {
                let comment = text(value);
                dropped = dropped.or(comment.strip_prefix("dropped: ").map(str::to_owned));
            }
            2 => {
                way = match u32::from_le_bytes(value.try_into().expect("four bytes")) {
                    1 => Some(Way::In),
                    2 => Some(Way::Out),
                    other => panic!("flags {other}"),
                }
            }
            other => panic!("option {other} of a packet"),
        }
    }
    Packet {
        at_ns: u64::from(block.ts_high) << 32 | u64::from(block.ts_low),
        bytes: block.packet_data().to_vec(),
        len: block.origlen,
        way: way.expect("a direction"),
        dropped,
    }
}

fn statistics(block: &InterfaceStatisticsBlock<'_>) -> Statistics {
    options(&block.options);
    let number = |number: Option<Result<u64, _>>| number.expect("a counter").expect("a number");
    Statistics {
        meant: number(block.isb_ifrecv()),
        lost: number(block.isb_ifdrop()),
    }
}

fn interface(section: &mut Section, block: &InterfaceDescriptionBlock<'_>) {
    assert_eq!(block.linktype, Linktype::ETHERNET);
    for (code, value) in options(&block.options) {
        match code {
            2 => section.interface = text(value),
            9 => assert_eq!(value, [9], "nanoseconds"),
            11 => section.filter = text(value.strip_prefix(&[0]).expect("a text")),
            other => panic!("option {other} of an interface"),
        }
    }
}

/// Reads a file.
///
/// # Panics
/// When it is not as it has to be.
pub fn read(file: &[u8]) -> Section {
    let mut section = Section::default();
    for (at, block) in blocks(file).into_iter().enumerate() {
        assert!(section.statistics.is_none(), "statistics come last");
        match (at, block) {
            (0, Block::SectionHeader(header)) => {
                assert!(!header.big_endian(), "the byte order");
                assert_eq!((header.major_version, header.minor_version), (1, 0));
                options(&header.options);
            }
            (1, Block::InterfaceDescription(block)) => interface(&mut section, &block),
            (2.., Block::EnhancedPacket(block)) => section.packets.push(packet(&block)),
            (2.., Block::InterfaceStatistics(block)) => {
                section.statistics = Some(statistics(&block));
            }
            other => panic!("a block {other:?}"),
        }
    }
    section
}
