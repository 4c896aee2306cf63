//! A reader of pcap and pcapng files (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng): Ethernet
//! only, and only the headers of each frame. Memory is bounded for any file.

use std::io::{self, ErrorKind, Read};

/// Bytes of a frame that are read.
const HEADERS_MAX: usize = 192;
/// Upper bound of a block or packet in bytes; longer ones are an error.
const BLOCK_MAX: u32 = 1 << 24;
/// Upper bound of interfaces in a section.
const INTERFACES_MAX: usize = 1 << 16;
/// The link type of Ethernet.
const ETHERNET: u16 = 1;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Magic numbers of classic pcap, with time stamps in microseconds and nanoseconds.
const CLASSIC: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

/// A captured frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Captured {
    /// The first bytes.
    pub(super) headers: Vec<u8>,
    /// The original length.
    pub(super) length: u32,
}

/// Byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn word(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// Returns the order in which the bytes are one of these numbers.
    fn of(bytes: [u8; 4], magics: &[u32]) -> Option<Self> {
        let both = [Self::Little, Self::Big];
        both.into_iter().find(|o| magics.contains(&o.word(bytes)))
    }
}

#[derive(Debug)]
enum Format {
    Classic,
    /// The link types of the section's interfaces with their snapshot lengths; 0 means unlimited.
    NextGeneration(Vec<(u16, u32)>),
}

/// A reader of the frames of a file.
#[derive(Debug)]
pub(super) struct Capture<R> {
    input: R,
    order: Order,
    format: Format,
}

fn bad(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.into())
}

impl<R: Read> Capture<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// System errors, and a file that is not a capture.
    pub(super) fn open(mut input: R) -> io::Result<Self> {
        let none = || bad("neither pcap nor pcapng");
        let magic = word(&mut input)?.ok_or_else(none)?;
        if Order::of(magic, &[SECTION_HEADER]).is_some() {
            let format = Format::NextGeneration(Vec::new());
            let order = Order::Little;
            let mut capture = Self {
                input,
                order,
                format,
            };
            capture.begin_section()?;
            return Ok(capture);
        }
        let order = Order::of(magic, &CLASSIC).ok_or_else(none)?;
        let rest: [u8; 20] = whole(&mut input)?;
        let kind = order.word([rest[16], rest[17], rest[18], rest[19]]) & 0xffff;
        ethernet(kind as u16)?;
        Ok(Self {
            input,
            order,
            format: Format::Classic,
        })
    }

    /// Returns the next frame, or `None` at the end.
    ///
    /// # Errors
    /// System errors, and a malformed file.
    pub(super) fn next(&mut self) -> io::Result<Option<Captured>> {
        match self.format {
            Format::Classic => self.next_record(),
            Format::NextGeneration(_) => self.next_packet(),
        }
    }

    fn next_record(&mut self) -> io::Result<Option<Captured>> {
        if word(&mut self.input)?.is_none() {
            return Ok(None);
        }
        let [_, captured, length] = self.words()?;
        self.frame(captured, length, captured).map(Some)
    }

    /// Reads a frame of `captured` bytes, and skips the padding up to `room`.
    fn frame(&mut self, captured: u32, length: u32, room: u32) -> io::Result<Captured> {
        if captured > BLOCK_MAX || captured > room {
            return Err(bad(format!("invalid frame length {captured}")));
        }
        let read = (captured as usize).min(HEADERS_MAX);
        let mut headers = vec![0; read];
        fill(&mut self.input, &mut headers)?;
        self.skip(room - read as u32)?;
        let length = length.max(captured);
        Ok(Captured { headers, length })
    }

    /// Returns the length of the rest of a block, without the length at its end.
    fn block(&mut self, read: u32) -> io::Result<u32> {
        let [length] = self.words()?;
        let rest = length.checked_sub(read + 4);
        let invalid = || bad(format!("invalid block length {length}"));
        let rest = rest.filter(|_| length <= BLOCK_MAX && length.is_multiple_of(4));
        rest.ok_or_else(invalid)
    }

    /// Skips to the end of a block.
    fn end(&mut self, rest: u32) -> io::Result<()> {
        self.skip(rest)?;
        self.words::<1>().map(drop)
    }

    /// Reads a section header after its type.
    fn begin_section(&mut self) -> io::Result<()> {
        let length: [u8; 4] = whole(&mut self.input)?;
        let order: [u8; 4] = whole(&mut self.input)?;
        let order = Order::of(order, &[BYTE_ORDER]);
        self.order = order.ok_or_else(|| bad("unknown byte order of a section"))?;
        let length = self.order.word(length);
        if !(28..=BLOCK_MAX).contains(&length) || !length.is_multiple_of(4) {
            return Err(bad(format!("invalid section header length {length}")));
        }
        self.format = Format::NextGeneration(Vec::new());
        self.end(length - 16)
    }

    fn next_packet(&mut self) -> io::Result<Option<Captured>> {
        loop {
            let Some(kind) = word(&mut self.input)? else {
                return Ok(None);
            };
            match self.order.word(kind) {
                SECTION_HEADER => self.begin_section()?,
                INTERFACE => self.interface()?,
                ENHANCED_PACKET => return self.enhanced().map(Some),
                SIMPLE_PACKET => return self.simple().map(Some),
                _ => {
                    let rest = self.block(8)?;
                    self.end(rest)?;
                }
            }
        }
    }

    fn interface(&mut self) -> io::Result<()> {
        let rest = self.need(8)?;
        let kind: [u8; 4] = whole(&mut self.input)?;
        let kind = match self.order {
            Order::Little => u16::from_le_bytes([kind[0], kind[1]]),
            Order::Big => u16::from_be_bytes([kind[0], kind[1]]),
        };
        let [snaplen] = self.words()?;
        if let Format::NextGeneration(interfaces) = &mut self.format {
            if interfaces.len() == INTERFACES_MAX {
                return Err(bad("too many interfaces"));
            }
            interfaces.push((kind, snaplen));
        }
        self.end(rest)
    }

    /// Returns the length of a block's rest after its first `fixed` bytes, which are required.
    fn need(&mut self, fixed: u32) -> io::Result<u32> {
        let rest = self.block(8)?;
        let behind = rest.checked_sub(fixed);
        behind.ok_or_else(|| bad("block too short"))
    }

    fn enhanced(&mut self) -> io::Result<Captured> {
        let room = self.need(20)?;
        let [interface, _, _, captured, length] = self.words()?;
        self.snaplen_of(interface)?;
        let frame = self.frame(captured, length, room)?;
        self.end(0)?;
        Ok(frame)
    }

    fn simple(&mut self) -> io::Result<Captured> {
        let room = self.need(4)?;
        let [length] = self.words()?;
        let captured = match self.snaplen_of(0)? {
            0 => length,
            snaplen => snaplen.min(length),
        };
        let frame = self.frame(captured, length, room)?;
        self.end(0)?;
        Ok(frame)
    }

    /// Checks that a packet's interface is Ethernet and returns its snapshot length.
    fn snaplen_of(&self, interface: u32) -> io::Result<u32> {
        let Format::NextGeneration(interfaces) = &self.format else {
            return Ok(0);
        };
        let found = interfaces.get(interface as usize);
        let (kind, snaplen) = found.ok_or_else(|| bad("packet without an interface"))?;
        ethernet(*kind)?;
        Ok(*snaplen)
    }

    fn words<const N: usize>(&mut self) -> io::Result<[u32; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.order.word(whole(&mut self.input)?);
        }
        Ok(words)
    }

    fn skip(&mut self, bytes: u32) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.input).take(bytes.into()), &mut io::sink())?;
        if skipped == u64::from(bytes) {
            Ok(())
        } else {
            Err(truncated())
        }
    }
}

fn ethernet(kind: u16) -> io::Result<()> {
    match kind {
        ETHERNET => Ok(()),
        other => Err(bad(format!("link type {other} is not Ethernet"))),
    }
}

fn truncated() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "truncated file")
}

fn whole<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(input, &mut bytes)?;
    Ok(bytes)
}

fn fill(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<()> {
    let filled = input.read_exact(bytes);
    filled.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => truncated(),
        _ => error,
    })
}

/// Reads four bytes, or `None` at the end of the file.
fn word(input: &mut impl Read) -> io::Result<Option<[u8; 4]>> {
    let mut bytes = Vec::new();
    input.take(4).read_to_end(&mut bytes)?;
    match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(word) => Ok(Some(word)),
        Err(_) if bytes.is_empty() => Ok(None),
        Err(_) => Err(truncated()),
    }
}

#[cfg(test)]
mod tests;
