//! Messages: questions are read, answers are checked, replies are written.

/// Bytes of the header.
const HEADER: usize = 12;
/// Longest name in bytes, with lengths of labels and the root (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 255;
/// Maximum number of pointers of a name: as many as it can have labels.
const POINTERS_MAX: u8 = 127;
/// Longest label in bytes.
const LABEL_MAX: u8 = 63;
/// Bytes that every client of UDP takes.
pub(super) const UDP_LEAST: u16 = 512;
/// Type of the pseudo record of EDNS (RFC 6891, section 6.1).
const OPT: u16 = 41;

const RESPONSE: u16 = 1 << 15;
const OPCODE: u16 = 0xf << 11;
const RCODE: u16 = 0xf;
const AUTHORITATIVE: u16 = 1 << 10;
const TRUNCATED: u16 = 1 << 9;
const RECURSION_DESIRED: u16 = 1 << 8;
const RECURSION_AVAILABLE: u16 = 1 << 7;
/// Authentic data, checking disabled (RFC 4035, section 3.2).
const SECURITY: u16 = 1 << 5 | 1 << 4;

/// A message with lengths, pointers or counts that contradict its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed DNS message")]
pub struct MalformedError;

/// A response code (RFC 1035, section 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rcode {
    /// No error.
    Ok = 0,
    /// No resolver answered.
    ServerFailure = 2,
    /// There is no such name.
    NoName = 3,
    /// Another operation than a question.
    NotImplemented = 4,
    /// Too many questions wait.
    Refused = 5,
}

/// A question of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The guest's id.
    pub id: u16,
    flags: u16,
    /// The name as it was sent: labels with their lengths, and the root.
    name: Vec<u8>,
    kind: u16,
    class: u16,
    edns: Option<Edns>,
}

/// The guest's EDNS fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edns {
    /// Longest answer by UDP in bytes.
    size: u16,
    dnssec: bool,
}

/// Reads bytes from the front.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], MalformedError> {
        let end = self.at.checked_add(len).ok_or(MalformedError)?;
        let taken = self.bytes.get(self.at..end).ok_or(MalformedError)?;
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, MalformedError> {
        let bytes = self.take(2)?.try_into().map_err(|_| MalformedError)?;
        Ok(u16::from_be_bytes(bytes))
    }

    /// Reads a name. A pointer leads to a place before all that was read of the name, so that the
    /// walk ends.
    fn name(&mut self) -> Result<Vec<u8>, MalformedError> {
        let mut name = Vec::new();
        let (mut at, mut before, mut end) = (self.at, self.at, None);
        let mut pointers = 0;
        loop {
            let len = *self.bytes.get(at).ok_or(MalformedError)?;
            if len & 0xc0 == 0xc0 {
                let low = *self.bytes.get(at + 1).ok_or(MalformedError)?;
                let to = usize::from(u16::from_be_bytes([len & 0x3f, low]));
                pointers += 1;
                if to >= before || to < HEADER || pointers > POINTERS_MAX {
                    return Err(MalformedError);
                }
                end = end.or(Some(at + 2));
                (at, before) = (to, to);
                continue;
            }
            if len > LABEL_MAX {
                return Err(MalformedError);
            }
            let next = at + 1 + usize::from(len);
            name.extend(self.bytes.get(at..next).ok_or(MalformedError)?);
            at = next;
            if name.len() > NAME_MAX {
                return Err(MalformedError);
            }
            if len == 0 {
                self.at = end.unwrap_or(at);
                return Ok(name);
            }
        }
    }

    /// Reads a record: name, type, class, time to live.
    fn record(&mut self) -> Result<(Vec<u8>, u16, u16, u32), MalformedError> {
        let (name, kind, class) = (self.name()?, self.number()?, self.number()?);
        let ttl = u32::from(self.number()?) << 16 | u32::from(self.number()?);
        let len = self.number()?;
        self.take(usize::from(len))?;
        Ok((name, kind, class, ttl))
    }
}

/// Reads the header: id, flags, and the four counts.
fn header(reader: &mut Reader<'_>) -> Result<[u16; 6], MalformedError> {
    let mut fields = [0; 6];
    for field in &mut fields {
        *field = reader.number()?;
    }
    Ok(fields)
}

impl Query {
    /// Reads a question; the inner error is the reply to a message that is understood but not
    /// answered.
    ///
    /// # Errors
    /// [`MalformedError`] for what is not answered at all: answers, and what contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Result<Self, Vec<u8>>, MalformedError> {
        let mut reader = Reader { bytes, at: 0 };
        let [id, flags, questions, answers, authority, additional] = header(&mut reader)?;
        if flags & RESPONSE != 0 {
            return Err(MalformedError);
        }
        if flags & OPCODE != 0 {
            let flags = RESPONSE | flags & OPCODE | Rcode::NotImplemented as u16;
            let fields = [id, flags, 0, 0, 0, 0];
            return Ok(Err(fields.into_iter().flat_map(u16::to_be_bytes).collect()));
        }
        if (questions, answers, authority) != (1, 0, 0) {
            return Err(MalformedError);
        }
        // Nothing precedes the name, so that a pointer cannot be in it.
        let (name, kind, class) = (reader.name()?, reader.number()?, reader.number()?);
        let mut edns = None;
        for _ in 0..additional {
            let (owner, record, size, ttl) = reader.record()?;
            if record != OPT {
                continue;
            }
            let dnssec = ttl & 1 << 15 != 0;
            if owner != [0] || edns.replace(Edns { size, dnssec }).is_some() {
                return Err(MalformedError);
            }
        }
        if reader.at != bytes.len() {
            return Err(MalformedError);
        }
        let flags = flags & (RECURSION_DESIRED | SECURITY);
        Ok(Ok(Self {
            id,
            flags,
            name,
            kind,
            class,
            edns,
        }))
    }

    /// The labels of the name in lower case; `None` if one is no text of letters, digits, hyphens
    /// and underscores.
    pub(super) fn labels(&self) -> Option<Vec<String>> {
        let (mut labels, mut rest) = (Vec::new(), &self.name[..]);
        while let [len, tail @ ..] = rest
            && *len > 0
        {
            let (label, tail) = tail.split_at_checked(usize::from(*len))?;
            let good = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            if !label.iter().all(good) {
                return None;
            }
            let text = label.iter().map(|b| char::from(b.to_ascii_lowercase()));
            labels.push(text.collect());
            rest = tail;
        }
        Some(labels)
    }

    /// Type and class.
    pub(super) fn kind(&self) -> (u16, u16) {
        (self.kind, self.class)
    }

    /// Bytes that the guest takes by UDP.
    pub(super) fn size(&self) -> u16 {
        self.edns.map_or(UDP_LEAST, |edns| edns.size.max(UDP_LEAST))
    }

    /// The message that asks a resolver. `size` is the longest answer by UDP in bytes.
    pub(super) fn to_resolver(&self, id: u16, size: u16) -> Vec<u8> {
        let additional = u16::from(self.edns.is_some());
        let mut message = self.head(id, self.flags, [0, 0, additional]);
        if let Some(edns) = self.edns {
            message.push(0);
            let dnssec = u16::from(edns.dnssec) << 15;
            let fields = [OPT, edns.size.clamp(UDP_LEAST, size), 0, dnssec, 0];
            message.extend(fields.into_iter().flat_map(u16::to_be_bytes));
        }
        message
    }

    /// Header with these counts, and question.
    fn head(&self, id: u16, flags: u16, counts: [u16; 3]) -> Vec<u8> {
        let [answers, authority, additional] = counts;
        let fields = [id, flags, 1, answers, authority, additional];
        let mut message: Vec<u8> = fields.into_iter().flat_map(u16::to_be_bytes).collect();
        message.extend(&self.name);
        message.extend(self.kind.to_be_bytes());
        message.extend(self.class.to_be_bytes());
        message
    }

    /// A reply without records.
    #[must_use]
    pub fn reply(&self, rcode: Rcode) -> Vec<u8> {
        let flags = RESPONSE | RECURSION_AVAILABLE | self.flags | rcode as u16;
        self.head(self.id, flags, [0; 3])
    }

    /// A reply of our own, with records of the question's name and type.
    pub(super) fn authoritative(&self, rcode: Rcode, ttl: u32, data: &[Vec<u8>]) -> Vec<u8> {
        let flags = RESPONSE | AUTHORITATIVE | RECURSION_AVAILABLE;
        let flags = flags | self.flags & RECURSION_DESIRED | rcode as u16;
        let mut message = self.head(self.id, flags, [data.len() as u16, 0, 0]);
        for data in data {
            // A pointer to the question's name.
            message.extend([0xc0, HEADER as u8]);
            message.extend(self.kind.to_be_bytes());
            message.extend(self.class.to_be_bytes());
            message.extend(ttl.to_be_bytes());
            message.extend((data.len() as u16).to_be_bytes());
            message.extend(data);
        }
        message
    }

    /// Returns the same question without EDNS, for a resolver that does not know it; `None` for one
    /// that has none.
    pub(super) fn without_edns(&self) -> Option<Self> {
        self.edns?;
        Some(Self {
            edns: None,
            ..self.clone()
        })
    }

    /// Reads a message that came from the resolver that was asked with `id`. An answer that is
    /// longer than `most` bytes, or broken where the resolver has cut it off, is replaced by an
    /// empty one that says so, after which the guest asks by TCP.
    pub(super) fn read(&self, id: u16, bytes: &[u8], most: usize) -> Reading {
        let mut reader = Reader { bytes, at: 0 };
        let head = match header(&mut reader) {
            Ok(head) if head[0] == id && head[1] & RESPONSE != 0 => head,
            _ => return Reading::Other,
        };
        self.read_body(head, reader, most)
            .unwrap_or(Reading::Nonsense)
    }

    fn read_body(
        &self,
        [_, flags, questions, answers, authority, additional]: [u16; 6],
        mut reader: Reader<'_>,
        most: usize,
    ) -> Result<Reading, MalformedError> {
        let code = flags & RCODE;
        let is_error = !is_answer(code);
        // Servers that do not understand a question return the header alone.
        if is_error && questions == 0 {
            return Ok(self.error(code));
        }
        if flags & OPCODE != 0 || questions != 1 {
            return Err(MalformedError);
        }
        let (name, kind, class) = (reader.name()?, reader.number()?, reader.number()?);
        let same = name.eq_ignore_ascii_case(&self.name);
        if !same || (kind, class) != (self.kind, self.class) {
            return Err(MalformedError);
        }
        let counts = [answers, authority, additional];
        let extended = match records(&mut reader, counts) {
            Ok(extended) => extended,
            Err(_) if is_error => return Ok(self.error(code)),
            Err(_) if flags & TRUNCATED != 0 => return Ok(self.cut_off(flags)),
            Err(error) => return Err(error),
        };
        let mut message = reader.bytes[..reader.at].to_vec();
        message[..2].copy_from_slice(&self.id.to_be_bytes());
        let code = extended.map_or(0, |code| u16::from(code) << 4) | code;
        if !is_answer(code) {
            return Ok(match reader.at > most {
                true => self.error(code),
                false => Reading::Error(code, message),
            });
        }
        let others = additional - u16::from(extended.is_some());
        let is_lame = flags & (RCODE | AUTHORITATIVE | RECURSION_AVAILABLE) == 0
            && (answers, others) == (0, 0);
        Ok(match reader.at > most {
            true => self.cut_off(flags),
            false if is_lame => Reading::Lame(message),
            false => Reading::Answer(message),
        })
    }

    /// An error. Its message is not passed on as it is.
    fn error(&self, code: u16) -> Reading {
        let flags = RESPONSE | RECURSION_AVAILABLE | self.flags | code & RCODE;
        Reading::Error(code, self.head(self.id, flags, [0; 3]))
    }

    /// An answer that says that it is cut off.
    fn cut_off(&self, flags: u16) -> Reading {
        let flags = flags & !SECURITY | TRUNCATED;
        Reading::Answer(self.head(self.id, flags, [0; 3]))
    }
}

/// Returns whether a response code is that of an answer: there is such a name, or there is none.
fn is_answer(code: u16) -> bool {
    code == Rcode::Ok as u16 || code == Rcode::NoName as u16
}

/// Reads all records of a message; returns the upper bits of its response code (RFC 6891, section
/// 6.1.3), if it has EDNS.
fn records(
    reader: &mut Reader<'_>,
    [answers, authority, additional]: [u16; 3],
) -> Result<Option<u8>, MalformedError> {
    for _ in 0..u32::from(answers) + u32::from(authority) {
        reader.record()?;
    }
    let mut extended = None;
    for _ in 0..additional {
        let (_, kind, _, ttl) = reader.record()?;
        if kind == OPT {
            extended = Some(ttl.to_be_bytes()[0]);
        }
    }
    Ok(extended)
}

/// The meaning of a message that came from a resolver. Messages have the guest's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// It answers the question; that there is no such name is an answer, too.
    Answer(Vec<u8>),
    /// It answers the question with this response code, which is an error.
    Error(u16, Vec<u8>),
    /// No error, nor an answer: the server is none for the name, and asks no other.
    Lame(Vec<u8>),
    /// It has the id of the question, and does not answer it.
    Nonsense,
    /// It may come from elsewhere: by UDP the answer may come yet.
    Other,
}
