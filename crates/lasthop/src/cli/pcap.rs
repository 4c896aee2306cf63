//! A reader of the frames of pcap and pcapng files: Ethernet only, and only the headers of each
//! frame. Memory is bounded for any file.

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

/// A captured frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Captured {
    /// The first bytes.
    pub(super) headers: Vec<u8>,
    /// The original length.
    pub(super) length: u32,
}

impl Captured {
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
}

impl<R: Read> Capture<R> {
    /// Returns a reader at the beginning of a file.
    pub(super) fn new(input: R) -> Self {
        let format = Format {
            parser: None,
            interfaces: Vec::new(),
        };
        Self {
            input,
            buffer: Vec::new(),
            format,
        }
    }

    /// Returns the next frame, or `None` at the end.
    ///
    /// # Errors
    /// System errors, a file that is not a capture, and a malformed one.
    pub(super) fn next(&mut self) -> io::Result<Option<Captured>> {
        loop {
            match self.format.parser.unwrap_or(first_block)(&self.buffer) {
                Ok((rest, block)) => {
                    let frame = self.format.read(block)?;
                    let parsed = self.buffer.len() - rest.len();
                    self.buffer.drain(..parsed);
                    if frame.is_some() {
                        return Ok(frame);
                    }
                }
                Err(nom::Err::Incomplete(needed)) => {
                    if !self.read_more(needed)? {
                        return Ok(None);
                    }
                }
                Err(_) if self.format.parser.is_none() => return Err(no_capture()),
                Err(_) => return Err(bad("malformed block")),
            }
        }
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
    fn read(&mut self, block: PcapBlockOwned<'_>) -> io::Result<Option<Captured>> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => self.begin_classic(&header)?,
            PcapBlockOwned::Legacy(frame) => {
                return Ok(Some(Captured::new(frame.data, frame.origlen)));
            }
            PcapBlockOwned::NG(Block::SectionHeader(header)) => {
                self.interfaces.clear();
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
                return Ok(Some(Captured::new(packet.packet_data(), packet.origlen)));
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                let bytes = packet.packet_data();
                let captured = match self.snaplen_of(0)? {
                    0 => bytes,
                    snaplen => &bytes[..bytes.len().min(snaplen as usize)],
                };
                return Ok(Some(Captured::new(captured, packet.origlen)));
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
