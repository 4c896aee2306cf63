//! The messages. Numbers are little-endian; bytes that are not listed are zero.
//!
//! ```text
//! all        0 kind u16     2 version u16
//! REGISTER   4 id u16       6 end u16 (0 master, 1 slave)   8 instance u128 (0: none yet)
//!           24 slots u16   32 program, 16 bytes                                    48 bytes
//! CREATE     4 slots u16 (configured; 0: none is)                                   8 bytes
//! OFFER,     4 slots u16    8 instance u128 (not 0)         24 file size u64
//! JOIN      32 pool u64    40 buffer size u32   44 buffers u32
//!           48 slots u64   56 lines u64  (from the master to the slave)
//!           64 slots u64   72 lines u64  (from the slave to the master)            80 bytes
//! REFUSED    4 length u16   8 reason, UTF-8                                        128 bytes
//! ```
//!
//! Descriptors of OFFER and JOIN: the file, and the eventfds of the waiting master and slave.

use std::fmt;

/// Version of the messages.
pub const VERSION: u16 = 1;
/// Most bytes of a message.
pub const MAX_MESSAGE: usize = 256;
/// Most descriptors with a message; a message has 3 or none.
pub const MAX_DESCRIPTORS: usize = 4;
/// Descriptors of a pipe.
pub(crate) const DESCRIPTORS: usize = 3;
/// Most bytes of a reason.
pub const MAX_REASON: usize = 120;
/// Bytes from the index line of a ring's producer to that of its consumer.
pub const LINE_DISTANCE: u64 = 256;
/// Least number of slots of a ring.
pub const SLOTS_MIN: u16 = 64;
/// Greatest number of slots of a ring.
pub const SLOTS_MAX: u16 = 4096;

/// Bytes of a slot (`struct netmap_slot`).
const SLOT: u64 = 16;
/// Bytes of an index line, and the alignment of lines and slots.
const LINE: u64 = 64;
/// Longest file; more than memory, and far from overflow.
const FILE_MAX: u64 = 1 << 44;

const REGISTER: u16 = 1;
const CREATE: u16 = 2;
const JOIN: u16 = 3;
const OFFER: u16 = 4;
const REFUSED: u16 = 5;

const REGISTER_LEN: usize = 48;
const CREATE_LEN: usize = 8;
const OFFER_LEN: usize = 80;
const REFUSED_LEN: usize = 8 + MAX_REASON;

/// An end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// `NAME{ID`.
    Master,
    /// `NAME}ID`.
    Slave,
}

impl End {
    /// Both, in the order of their numbers.
    pub const BOTH: [Self; 2] = [Self::Master, Self::Slave];

    /// Returns its number: 0 or 1.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Slave => "slave",
        }
    }
}

/// An end's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Number of the pipe.
    pub id: u16,
    /// The end.
    pub end: End,
    /// Random name of the pipe's memory, if the end has it already; else 0.
    pub instance: u128,
    /// Slots of each ring that the end would make; 0: no preference.
    pub slots: u16,
    /// Name of the program, padded with NUL; for people.
    pub program: [u8; 16],
}

/// Request to make the memory and to offer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Slots of each ring as configured; 0: the end chooses.
    pub slots: u16,
}

/// Place of one direction's ring in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Offset of the slots.
    pub slots: u64,
    /// Offset of the producer's index line; the consumer's is [`LINE_DISTANCE`] bytes after it.
    pub lines: u64,
}

/// The rings of a pipe in its file. The server checks the numbers and not the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Slots of each ring: a power of two from [`SLOTS_MIN`] to [`SLOTS_MAX`].
    pub slots: u16,
    /// Bytes of the file.
    pub file_size: u64,
    /// Offset of buffer 0.
    pub pool: u64,
    /// Bytes of a buffer.
    pub buffer_size: u32,
    /// Number of buffers.
    pub buffers: u32,
    /// From the master to the slave, and back.
    pub blocks: [Block; 2],
}

/// Memory that an end offers, or that it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Random name of the memory; not 0.
    pub instance: u128,
    /// The rings in it.
    pub rings: Rings,
}

/// A message of an end to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first one.
    Register(Register),
    /// The answer to [`Answer::Create`], with descriptors.
    Offer(Offer),
}

/// A message of the server to an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The end is the first: it must make the memory and offer it.
    Create(Create),
    /// The end has this memory; with descriptors.
    Join(Offer),
    /// The reason of a refusal. The connection is closed.
    Refused(String),
}

/// The reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageError(pub &'static str);

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for MessageError {}

impl Rings {
    /// Checks that all parts are inside of the file.
    ///
    /// # Errors
    /// The first number that is out of its bounds.
    pub fn check(&self) -> Result<(), MessageError> {
        let inside = |offset: u64, bytes: u64| {
            let end = offset.checked_add(bytes);
            end.is_some_and(|end| end <= self.file_size)
        };
        let is_size = (SLOTS_MIN..=SLOTS_MAX).contains(&self.slots);
        if !is_size || !self.slots.is_power_of_two() {
            return Err(MessageError("slots are no power of two from 64 to 4096"));
        }
        if self.file_size > FILE_MAX {
            return Err(MessageError("the file is too long"));
        }
        if self.buffers == 0 || self.buffer_size == 0 {
            return Err(MessageError("there are no buffers"));
        }
        let pool = u64::from(self.buffers) * u64::from(self.buffer_size);
        if !inside(self.pool, pool) {
            return Err(MessageError("the buffers are not inside of the file"));
        }
        for Block { slots, lines } in self.blocks {
            if slots % LINE != 0 || lines % LINE != 0 {
                return Err(MessageError("slots or index lines are not aligned"));
            }
            let fits = inside(slots, SLOT * u64::from(self.slots));
            if !fits || !inside(lines, LINE_DISTANCE + LINE) {
                return Err(MessageError(
                    "slots or index lines are not inside of the file",
                ));
            }
        }
        Ok(())
    }
}

/// Builds a message of fixed length.
struct Writer<const N: usize>([u8; N]);

impl<const N: usize> Writer<N> {
    fn new(kind: u16) -> Self {
        let mut message = Self([0; N]);
        message.put(0, kind.to_le_bytes());
        message.put(2, VERSION.to_le_bytes());
        message
    }

    fn put<const M: usize>(&mut self, at: usize, bytes: [u8; M]) {
        if let Some(place) = self.0.get_mut(at..at + M) {
            place.copy_from_slice(&bytes);
        }
    }
}

/// Reads a message of fixed length.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the kind and the version.
    fn new(bytes: &'a [u8]) -> Result<(u16, Self), MessageError> {
        let reader = Self(bytes);
        if bytes.len() < 4 {
            return Err(MessageError("the message is too short"));
        }
        if reader.u16(2) != VERSION {
            return Err(MessageError("the message is of another version"));
        }
        Ok((reader.u16(0), reader))
    }

    fn of_length(self, length: usize) -> Result<Self, MessageError> {
        match self.0.len() == length {
            true => Ok(self),
            false => Err(MessageError("the message is of another length")),
        }
    }

    /// Returns the bytes at an offset; the length was checked.
    fn bytes<const M: usize>(&self, at: usize) -> [u8; M] {
        let bytes = self.0.get(at..at + M);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; M])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    fn u128(&self, at: usize) -> u128 {
        u128::from_le_bytes(self.bytes(at))
    }
}

impl Register {
    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REGISTER_LEN] {
        let mut message = Writer::new(REGISTER);
        message.put(4, self.id.to_le_bytes());
        message.put(6, (self.end.index() as u16).to_le_bytes());
        message.put(8, self.instance.to_le_bytes());
        message.put(24, self.slots.to_le_bytes());
        message.put(32, self.program);
        message.0
    }

    fn read(from: &Reader<'_>) -> Result<Self, MessageError> {
        let end = End::BOTH.get(usize::from(from.u16(6)));
        Ok(Self {
            id: from.u16(4),
            end: *end.ok_or(MessageError("there is no such end"))?,
            instance: from.u128(8),
            slots: from.u16(24),
            program: from.bytes(32),
        })
    }
}

impl Offer {
    /// Encodes the message of an end.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; OFFER_LEN] {
        self.encode(OFFER)
    }

    fn encode(&self, kind: u16) -> [u8; OFFER_LEN] {
        let rings = &self.rings;
        let mut message = Writer::new(kind);
        message.put(4, rings.slots.to_le_bytes());
        message.put(8, self.instance.to_le_bytes());
        message.put(24, rings.file_size.to_le_bytes());
        message.put(32, rings.pool.to_le_bytes());
        message.put(40, rings.buffer_size.to_le_bytes());
        message.put(44, rings.buffers.to_le_bytes());
        for (at, block) in [48, 64].into_iter().zip(rings.blocks) {
            message.put(at, block.slots.to_le_bytes());
            message.put(at + 8, block.lines.to_le_bytes());
        }
        message.0
    }

    fn read(from: &Reader<'_>) -> Result<Self, MessageError> {
        let block = |at| Block {
            slots: from.u64(at),
            lines: from.u64(at + 8),
        };
        let rings = Rings {
            slots: from.u16(4),
            file_size: from.u64(24),
            pool: from.u64(32),
            buffer_size: from.u32(40),
            buffers: from.u32(44),
            blocks: [block(48), block(64)],
        };
        rings.check()?;
        match from.u128(8) {
            0 => Err(MessageError("the memory has no name")),
            instance => Ok(Self { instance, rings }),
        }
    }
}

impl Request {
    /// Decodes a message of an end. Numbers are in their bounds.
    ///
    /// # Errors
    /// It is no such message.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        match Reader::new(bytes)? {
            (REGISTER, from) => {
                let from = from.of_length(REGISTER_LEN)?;
                Register::read(&from).map(Self::Register)
            }
            (OFFER, from) => Offer::read(&from.of_length(OFFER_LEN)?).map(Self::Offer),
            _ => Err(MessageError("the message is of unknown kind")),
        }
    }

    /// Returns the number of descriptors that come with it.
    #[must_use]
    pub const fn descriptors(&self) -> usize {
        match self {
            Self::Register(_) => 0,
            Self::Offer(_) => DESCRIPTORS,
        }
    }
}

impl Answer {
    /// Encodes the message. A reason is cut at [`MAX_REASON`] bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Create(Create { slots }) => {
                let mut message = Writer::<CREATE_LEN>::new(CREATE);
                message.put(4, slots.to_le_bytes());
                message.0.to_vec()
            }
            Self::Join(offer) => offer.encode(JOIN).to_vec(),
            Self::Refused(reason) => {
                let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
                let mut message = Writer::<REFUSED_LEN>::new(REFUSED);
                message.put(4, (reason.len() as u16).to_le_bytes());
                message.0[8..8 + reason.len()].copy_from_slice(reason.as_bytes());
                message.0.to_vec()
            }
        }
    }

    /// Decodes a message of the server. Numbers are in their bounds.
    ///
    /// # Errors
    /// It is no such message.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        match Reader::new(bytes)? {
            (CREATE, from) => {
                let slots = from.of_length(CREATE_LEN)?.u16(4);
                Ok(Self::Create(Create { slots }))
            }
            (JOIN, from) => Offer::read(&from.of_length(OFFER_LEN)?).map(Self::Join),
            (REFUSED, from) => {
                let from = from.of_length(REFUSED_LEN)?;
                let reason = from.0.get(8..8 + usize::from(from.u16(4)));
                let reason = reason.ok_or(MessageError("the reason is too long"))?;
                Ok(Self::Refused(String::from_utf8_lossy(reason).into_owned()))
            }
            _ => Err(MessageError("the message is of unknown kind")),
        }
    }

    /// Returns the number of descriptors that come with it.
    #[must_use]
    pub const fn descriptors(&self) -> usize {
        match self {
            Self::Join(_) => DESCRIPTORS,
            Self::Create(_) | Self::Refused(_) => 0,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns rings in a file of 1 MiB.
    pub(crate) fn rings() -> Rings {
        let block = |at| Block {
            slots: at,
            lines: at + 0x8000,
        };
        Rings {
            slots: 2048,
            file_size: 1 << 20,
            pool: 0x2_0000,
            buffer_size: 2048,
            buffers: 100,
            blocks: [block(0), block(0x1_0000)],
        }
    }

    #[test]
    fn messages_are_what_the_layout_says() {
        let register = Register {
            id: 0x0201,
            end: End::Slave,
            instance: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100,
            slots: 0x0400,
            program: *b"pkt-gen\0\0\0\0\0\0\0\0\0",
        };
        let mut expected = vec![1, 0, 1, 0, 1, 2, 1, 0];
        expected.extend(0..16u8);
        expected.extend([0, 4, 0, 0, 0, 0, 0, 0]);
        expected.extend(register.program);
        assert_eq!(register.to_bytes().to_vec(), expected);
        let create = Answer::Create(Create { slots: 0x0800 });
        assert_eq!(create.to_bytes(), [2, 0, 1, 0, 0, 8, 0, 0]);
        let offer = Offer {
            instance: 7,
            rings: rings(),
        };
        let join = Answer::Join(offer).to_bytes();
        assert_eq!(join[..10], [3, 0, 1, 0, 0, 8, 0, 0, 7, 0]);
        assert_eq!(join[24..32], (1u64 << 20).to_le_bytes());
        assert_eq!(join[64..72], 0x1_0000u64.to_le_bytes());
        assert_eq!(join[72..80], 0x1_8000u64.to_le_bytes());
        assert_eq!(offer.to_bytes()[0], 4);
        assert_eq!(join[1..], offer.to_bytes()[1..]);
        let refused = Answer::Refused("no".to_owned()).to_bytes();
        assert_eq!(refused[..11], [5, 0, 1, 0, 2, 0, 0, 0, b'n', b'o', 0]);
        let all = [join.len(), refused.len(), expected.len()];
        assert!(all.iter().all(|len| *len <= MAX_MESSAGE), "{all:?}");
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let register = Register {
            id: u16::MAX,
            end: End::Master,
            instance: u128::MAX,
            slots: 0,
            program: [b'x'; 16],
        };
        let read = Request::from_bytes(&register.to_bytes());
        assert_eq!(read, Ok(Request::Register(register)));
        let offer = Offer {
            instance: 1,
            rings: rings(),
        };
        let read = Request::from_bytes(&offer.to_bytes());
        assert_eq!(read, Ok(Request::Offer(offer)));
        for answer in [
            Answer::Create(Create { slots: 2048 }),
            Answer::Join(offer),
            Answer::Refused("in use".to_owned()),
        ] {
            assert_eq!(Answer::from_bytes(&answer.to_bytes()), Ok(answer));
        }
        let long = Answer::Refused("ü".repeat(100)).to_bytes();
        let cut = Answer::Refused("ü".repeat(MAX_REASON / 2));
        assert_eq!(Answer::from_bytes(&long), Ok(cut));
    }

    #[test]
    fn numbers_have_bounds() {
        let good = rings();
        assert_eq!(good.check(), Ok(()));
        let [first, second] = good.blocks;
        for bad in [
            Rings { slots: 32, ..good },
            Rings { slots: 96, ..good },
            Rings {
                slots: 8192,
                ..good
            },
            Rings {
                file_size: u64::MAX,
                ..good
            },
            Rings { buffers: 0, ..good },
            Rings {
                buffers: 1000,
                ..good
            },
            Rings {
                buffer_size: u32::MAX,
                buffers: u32::MAX,
                ..good
            },
            Rings {
                pool: u64::MAX,
                ..good
            },
            Rings {
                blocks: [first, Block { slots: 8, ..second }],
                ..good
            },
            Rings {
                blocks: [
                    first,
                    Block {
                        lines: u64::MAX - 63,
                        ..second
                    },
                ],
                ..good
            },
            Rings {
                blocks: [
                    Block {
                        slots: (1 << 20) - 64,
                        ..first
                    },
                    second,
                ],
                ..good
            },
            Rings {
                blocks: [
                    Block {
                        lines: (1 << 20) - 64,
                        ..first
                    },
                    second,
                ],
                ..good
            },
        ] {
            let offer = Offer {
                instance: 1,
                rings: bad,
            };
            assert!(Request::from_bytes(&offer.to_bytes()).is_err(), "{bad:?}");
        }
        let nameless = Offer {
            instance: 0,
            rings: good,
        };
        assert!(Request::from_bytes(&nameless.to_bytes()).is_err());
    }

    #[test]
    fn other_bytes_are_refused() {
        let bytes = Offer {
            instance: 1,
            rings: rings(),
        }
        .to_bytes();
        for wrong in [
            &[][..],
            &bytes[..3],
            &bytes[..79],
            &[4, 0, 2, 0],
            &[9, 0, 1, 0],
        ] {
            assert!(Request::from_bytes(wrong).is_err(), "{wrong:?}");
            assert!(Answer::from_bytes(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..7u8) {
            let mut bytes = bytes;
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&[kind, 0, 1, 0]);
            }
            if let Ok(request) = Request::from_bytes(&bytes) {
                let again = match request {
                    Request::Register(register) => register.to_bytes().to_vec(),
                    Request::Offer(offer) => offer.to_bytes().to_vec(),
                };
                prop_assert_eq!(Request::from_bytes(&again), Ok(request));
            }
            if let Ok(answer) = Answer::from_bytes(&bytes) {
                prop_assert_eq!(Answer::from_bytes(&answer.to_bytes()), Ok(answer));
            }
        }
    }
}
