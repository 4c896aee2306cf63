//! A reader of the frames of pcap and pcapng files: Ethernet only, and only the headers of each
//! frame. Memory is bounded for any file. A part that cannot be read costs that part: a packet of
//! another link, a damaged block with a plausible length, or, where even that is damaged, the rest
//! of the file.

use std::io::{self, ErrorKind, Read};

use pcap_parser::nom::{self, IResult, Needed};
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, PcapHeader};
use pcap_parser::{EPB_MAGIC, IDB_MAGIC, SHB_MAGIC, SPB_MAGIC};
use pcap_parser::{parse_block_be, parse_block_le, parse_unknownblock_be, parse_unknownblock_le};
use pcap_parser::{parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};

/// Bytes of a frame that are kept.
const HEADERS_MAX: usize = 192;
/// Upper bound of a block or packet in bytes; longer ones are an error.
const BLOCK_MAX: usize = 1 << 24;
/// Upper bound of interfaces in a section.
const INTERFACES_MAX: usize = 1 << 16;

/// A part of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// A frame with its number among the packets of the file, from 1.
    Frame(u64, CapturedFrame),
    /// A part that is not read, with its place and the reason.
    Bad(String),
    /// No part can be read, for this reason.
    Nothing(String),
}

/// A captured frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CapturedFrame {
    /// The first bytes.
    pub(super) headers: Vec<u8>,
    /// The original length.
    pub(super) length: u32,
}

impl CapturedFrame {
    fn new(bytes: &[u8], length: u32) -> Self {
        Self {
            headers: bytes[..bytes.len().min(HEADERS_MAX)].to_vec(),
            length: length.max(bytes.len() as u32),
        }
    }
}

/// Parses a block of a file.
type Parser = fn(&[u8]) -> IResult<&[u8], PcapBlockOwned<'_>, PcapError<&[u8]>>;

/// Properties of a file, known from its parts so far, on which the next ones depend.
#[derive(Debug)]
struct Format {
    /// `None` at the beginning of the file.
    parser: Option<Parser>,
    /// The byte order of a section of pcapng.
    big_endian: Option<bool>,
    /// The link types of the section's interfaces with their snapshot lengths; 0 means unlimited.
    interfaces: Vec<(Linktype, u32)>,
}

/// A reader of the frames of a file.
#[derive(Debug)]
pub(super) struct Capture<R> {
    input: R,
    /// Bytes that were read and not parsed.
    buffer: Vec<u8>,
    format: Format,
    /// Packets so far.
    packets: u64,
    /// The rest of the file is not read.
    is_over: bool,
}

impl<R: Read> Capture<R> {
    /// Returns a reader at the beginning of a file.
    pub(super) fn new(input: R) -> Self {
        let format = Format {
            parser: None,
            big_endian: None,
            interfaces: Vec::new(),
        };
        Self {
            input,
            buffer: Vec::new(),
            format,
            packets: 0,
            is_over: false,
        }
    }

    /// Returns the next part, or `None` at the end.
    pub(super) fn next(&mut self) -> Option<Part> {
        while !self.is_over {
            match self.format.parser.unwrap_or(first_block)(&self.buffer) {
                Ok((rest, block)) => {
                    let is_packet = is_packet(&block);
                    let read = self.format.read(block);
                    let parsed = self.buffer.len() - rest.len();
                    self.buffer.drain(..parsed);
                    self.packets += u64::from(is_packet);
                    match read {
                        Ok(None) => {}
                        Ok(Some(frame)) => return Some(Part::Frame(self.packets, frame)),
                        Err(error) if is_packet => return Some(self.bad(&error)),
                        Err(error) => return Some(self.broken(&error)),
                    }
                }
                Err(error) => {
                    if let Some(len) = self.whole_packet() {
                        self.buffer.drain(..len);
                        self.packets += 1;
                        return Some(self.bad(&bad("malformed block")));
                    }
                    let more = match error {
                        nom::Err::Incomplete(needed) => self.read_more(needed),
                        _ if self.format.parser.is_none() => Err(no_capture()),
                        _ => Err(bad("malformed block")),
                    };
                    match more {
                        Ok(more) => self.is_over = !more,
                        Err(error) => return Some(self.broken(&error)),
                    }
                }
            }
        }
        None
    }

    /// Returns the packet that was read last as one that is left out.
    fn bad(&self, error: &io::Error) -> Part {
        Part::Bad(format!("packet {}: {error}", self.packets))
    }

    /// Ends the file, whose rest cannot be read.
    fn broken(&mut self, error: &io::Error) -> Part {
        self.is_over = true;
        match self.packets {
            0 => Part::Nothing(error.to_string()),
            packets => Part::Bad(format!("{error}: nothing is read behind packet {packets}")),
        }
    }

    /// Returns the length of the malformed block of pcapng at the front, if it is a packet's, is
    /// there as a whole and has that length at both ends (draft-ietf-opsawg-pcapng, 3.1).
    fn whole_packet(&self) -> Option<usize> {
        let big_endian = self.format.big_endian?;
        let word = |at: usize| {
            let four = *self.buffer.get(at..)?.first_chunk()?;
            Some(match big_endian {
                true => u32::from_be_bytes(four),
                false => u32::from_le_bytes(four),
            })
        };
        let is_packet = [EPB_MAGIC, SPB_MAGIC].contains(&word(0)?);
        let len = word(4)? as usize;
        let is_whole = len >= 12 && len.is_multiple_of(4) && word(len - 4)? as usize == len;
        (is_packet && is_whole).then_some(len)
    }

    /// Reads more of a block; `false` at the end of the file.
    fn read_more(&mut self, needed: Needed) -> io::Result<bool> {
        let needed = match needed {
            Needed::Size(bytes) => bytes.get(),
            Needed::Unknown => 1,
        };
        if self.buffer.len().saturating_add(needed) > BLOCK_MAX {
            return Err(bad("block of more than 16 MiB"));
        }
        let input = &mut self.input;
        let read = input.take(needed as u64).read_to_end(&mut self.buffer)?;
        match read {
            _ if read == needed => Ok(true),
            0 if self.buffer.is_empty() && self.format.parser.is_some() => Ok(false),
            _ if self.buffer.is_empty() => Err(no_capture()),
            _ => Err(io::Error::new(ErrorKind::UnexpectedEof, "truncated file")),
        }
    }
}

/// Returns whether a block has a frame.
fn is_packet(block: &PcapBlockOwned<'_>) -> bool {
    let with_frame =
        |block: &Block<'_>| matches!(block, Block::EnhancedPacket(_) | Block::SimplePacket(_));
    match block {
        PcapBlockOwned::Legacy(_) => true,
        PcapBlockOwned::NG(block) => with_frame(block),
        PcapBlockOwned::LegacyHeader(_) => false,
    }
}

/// Parses the header of a file.
fn first_block(bytes: &[u8]) -> IResult<&[u8], PcapBlockOwned<'_>, PcapError<&[u8]>> {
    // The same in both byte orders.
    if bytes.starts_with(&SHB_MAGIC.to_le_bytes()) {
        return pcapng_block(bytes, false);
    }
    parse_pcap_header(bytes).map(|(rest, header)| (rest, header.into()))
}

/// Parses a block of pcapng. Blocks without frames may contain anything.
fn pcapng_block(
    bytes: &[u8],
    big_endian: bool,
) -> IResult<&[u8], PcapBlockOwned<'_>, PcapError<&[u8]>> {
    let kind = bytes.first_chunk().map(|kind| match big_endian {
        true => u32::from_be_bytes(*kind),
        false => u32::from_le_bytes(*kind),
    });
    let is_read = |kind| [SHB_MAGIC, IDB_MAGIC, EPB_MAGIC, SPB_MAGIC].contains(&kind);
    let (rest, block) = match (kind.is_none_or(is_read), big_endian) {
        (true, false) => parse_block_le(bytes)?,
        (true, true) => parse_block_be(bytes)?,
        (false, false) => {
            parse_unknownblock_le(bytes).map(|(rest, block)| (rest, Block::Unknown(block)))?
        }
        (false, true) => {
            parse_unknownblock_be(bytes).map(|(rest, block)| (rest, Block::Unknown(block)))?
        }
    };
    Ok((rest, block.into()))
}

impl Format {
    /// Notes what a block says about the next ones, and returns its frame.
    fn read(&mut self, block: PcapBlockOwned<'_>) -> io::Result<Option<CapturedFrame>> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => self.begin_classic(&header)?,
            PcapBlockOwned::Legacy(frame) => {
                return Ok(Some(CapturedFrame::new(frame.data, frame.origlen)));
            }
            PcapBlockOwned::NG(Block::SectionHeader(header)) => {
                self.interfaces.clear();
                self.big_endian = Some(header.big_endian());
                self.parser = Some(if header.big_endian() {
                    |bytes| pcapng_block(bytes, true)
                } else {
                    |bytes| pcapng_block(bytes, false)
                });
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                if self.interfaces.len() == INTERFACES_MAX {
                    return Err(bad("too many interfaces"));
                }
                self.interfaces
                    .push((interface.linktype, interface.snaplen));
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                self.snaplen_of(packet.if_id)?;
                return Ok(Some(CapturedFrame::new(
                    packet.packet_data(),
                    packet.origlen,
                )));
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                let bytes = packet.packet_data();
                let captured = match self.snaplen_of(0)? {
                    0 => bytes,
                    snaplen => &bytes[..bytes.len().min(snaplen as usize)],
                };
                return Ok(Some(CapturedFrame::new(captured, packet.origlen)));
            }
            PcapBlockOwned::NG(_) => {}
        }
        Ok(None)
    }

    fn begin_classic(&mut self, header: &PcapHeader) -> io::Result<()> {
        if header.is_modified_format() {
            return Err(no_capture());
        }
        self.parser = Some(if header.is_bigendian() {
            |bytes| parse_pcap_frame_be(bytes).map(|(rest, frame)| (rest, frame.into()))
        } else {
            |bytes| parse_pcap_frame(bytes).map(|(rest, frame)| (rest, frame.into()))
        });
        // The other half has the length of the frame check sequence.
        ethernet(Linktype(header.network.0 & 0xffff))
    }

    /// Checks that a packet's interface is Ethernet and returns its snapshot length.
    fn snaplen_of(&self, interface: u32) -> io::Result<u32> {
        let found = self.interfaces.get(interface as usize);
        let (kind, snaplen) = found.ok_or_else(|| bad("packet without an interface"))?;
        ethernet(*kind)?;
        Ok(*snaplen)
    }
}

fn ethernet(kind: Linktype) -> io::Result<()> {
    match kind {
        Linktype::ETHERNET => Ok(()),
        Linktype(other) => Err(bad(&format!("link type {other} is not Ethernet"))),
    }
}

fn bad(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

fn no_capture() -> io::Error {
    bad("neither pcap nor pcapng")
}

#[cfg(test)]
mod tests;
