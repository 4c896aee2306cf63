//! Names of ports and pipes, as requests carry them, and the sockets that they mean.
//!
//! ```text
//!   netmap:a   a        the port a            DIR/a.netmap
//!   vale0:a             the port a            DIR/a.netmap
//!   p{7        p}7      pipe 7 of p           DIR/p.pipes
//! ```
//! `netmap:` is dropped by the program's library before the request; here it may be there still.
//! Suffixes for rings (`a-1`, `a^`, `a*`, `a/x`, `a@1`) never arrive: the program's library makes
//! fields of them. DIR is `LASTHOP_RUNTIME_DIR`, or `/run/lasthop`. `LASTHOP_NETMAP_SOCKETS` names
//! sockets that lie elsewhere: `NAME=PATH`, several with colons between them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::{SAY, refuse};

/// Default of `LASTHOP_RUNTIME_DIR`.
const RUNTIME_DIR: &str = "/run/lasthop";
/// Bytes of a port's name at most.
const MAX_NAME: usize = 63;
const PIPE_NUMBERS: &str = "the number of a pipe is 0 to 65535, or a word of letters, digits and _";
/// Variable with sockets that lie elsewhere.
const SOCKETS: &str = "LASTHOP_NETMAP_SOCKETS";

/// Why a name is refused, and the program's error.
type Refusal = (Errno, &'static str);

/// The end of a pipe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum End {
    /// `p{7`.
    Master,
    /// `p}7`.
    Slave,
}

/// A name that was read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Name {
    /// A port of the switch.
    Port(String),
    /// One end of a pipe.
    Pipe {
        /// The `[[pipe]]`, or the port with pipes.
        of: String,
        /// Number of the pipe.
        id: u16,
        /// Which end.
        end: End,
    },
}

impl Name {
    /// Reads the name of a request, and says why it is none.
    ///
    /// # Errors
    /// `EINVAL`: it is no name. `ENXIO`: it can be none of ours.
    pub fn read(bytes: &[u8]) -> Result<Self, Errno> {
        let end = bytes.iter().position(|byte| *byte == 0);
        let bytes = &bytes[..end.unwrap_or(bytes.len())];
        let read = match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(without_prefix(text)),
            Err(_) => Err((Errno::NXIO, "it is not UTF-8")),
        };
        read.map_err(|(errno, why)| {
            let name = String::from_utf8_lossy(bytes);
            refuse(
                errno,
                &format!("{name:?} is no name of a port or pipe: {why}"),
            )
        })
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        let Some(at) = text.rfind(['{', '}']) else {
            return Ok(Self::Port(checked(text)?));
        };
        let end = match text.as_bytes()[at] {
            b'{' => End::Master,
            _ => End::Slave,
        };
        let (of, id) = (checked(&text[..at])?, pipe_number(&text[at + 1..]));
        let id = id.ok_or((Errno::INVAL, PIPE_NUMBERS))?;
        Ok(Self::Pipe { of, id, end })
    }

    /// The port, or the name in front of a pipe's number.
    #[must_use]
    pub fn base(&self) -> &str {
        match self {
            Self::Port(name) => name,
            Self::Pipe { of, .. } => of,
        }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let variable = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let sockets = variable(SOCKETS).unwrap_or_default();
        let ending = match self {
            Self::Port(_) => "netmap",
            Self::Pipe { .. } => "pipes",
        };
        let file = format!("{}.{ending}", self.base());
        if let Some(path) = listed(&sockets, self.base(), ending) {
            return path;
        }
        let folder = variable("LASTHOP_RUNTIME_DIR").unwrap_or_else(|| RUNTIME_DIR.into());
        PathBuf::from(folder).join(file)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port(name) => f.write_str(name),
            Self::Pipe { of, id, end } => {
                let bracket = if *end == End::Master { '{' } else { '}' };
                write!(f, "{of}{bracket}{id}")
            }
        }
    }
}

fn without_prefix(text: &str) -> &str {
    if let Some(name) = text.strip_prefix("netmap:") {
        return name;
    }
    let is_identifier = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match text
        .strip_prefix("vale")
        .and_then(|rest| rest.split_once(':'))
    {
        Some((of, name)) if is_identifier(of) => name,
        _ => text,
    }
}

/// The number of a pipe. netmap takes words, too: a word means a number of the upper half.
fn pipe_number(id: &str) -> Option<u16> {
    if id.bytes().all(|byte| byte.is_ascii_digit()) {
        return id.parse().ok();
    }
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    // FNV-1a, folded to 15 bits: both ends find the same number.
    let hash = id.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let folded = (hash >> 15 ^ hash) as u16;
    id.bytes().all(is_word).then_some(folded | 0x8000)
}

fn checked(name: &str) -> Result<String, Refusal> {
    let is_file = !name.contains('/') && name != "." && name != "..";
    match name.len() {
        0 => Err((Errno::INVAL, "it is empty")),
        1..=MAX_NAME if is_file && name.chars().all(|letter| !letter.is_control()) => {
            Ok(name.to_owned())
        }
        1..=MAX_NAME => Err((Errno::NXIO, "it holds characters that no name has")),
        _ => Err((Errno::NXIO, "it is longer than 63 bytes")),
    }
}

/// Looks a name up in a list of `NAME=PATH`. Of a port with pipes both sockets have its name; the
/// ending of the path says which one it is, and a path with neither ending is good for both.
fn listed(sockets: &OsString, name: &str, ending: &str) -> Option<PathBuf> {
    let other = if ending == "pipes" {
        ".netmap"
    } else {
        ".pipes"
    };
    let entries = sockets.as_bytes().split(|byte| *byte == b':');
    let entries = entries.filter(|entry| !entry.is_empty());
    let entries = entries.filter_map(|entry| {
        let text = String::from_utf8_lossy(entry);
        let entry = std::str::from_utf8(entry)
            .ok()
            .and_then(|entry| entry.split_once('='));
        if entry.is_none() {
            SAY.once(&format!("{SOCKETS}: {text:?}: expected NAME=PATH"));
        }
        entry
    });
    let mut paths = entries.filter(|(of, path)| *of == name && !path.ends_with(other));
    paths.next().map(|(_, path)| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe(of: &str, id: u16, end: End) -> Result<Name, Errno> {
        let of = of.to_owned();
        Ok(Name::Pipe { of, id, end })
    }

    #[test]
    fn names_are_read() {
        let port = |name: &str| Ok(Name::Port(name.to_owned()));
        for (text, name) in [
            ("a", port("a")),
            ("netmap:a", port("a")),
            ("vale0:a", port("a")),
            ("vale:a", port("a")),
            ("vale_1x:a.b", port("a.b")),
            ("valet", port("valet")),
            ("vale-1:a", port("vale-1:a")),
            ("p{7", pipe("p", 7, End::Master)),
            ("vale9:p}65535", pipe("p", 65535, End::Slave)),
            ("p{1{2", pipe("p{1", 2, End::Master)),
            ("p}ab", pipe("p", pipe_number("ab").unwrap(), End::Slave)),
            ("p}65536", Err(Errno::INVAL)),
            ("p}+1", Err(Errno::INVAL)),
            ("p}", Err(Errno::INVAL)),
            ("{1", Err(Errno::INVAL)),
            ("", Err(Errno::INVAL)),
            ("vale0:", Err(Errno::INVAL)),
            ("../a", Err(Errno::NXIO)),
            ("..", Err(Errno::NXIO)),
            ("a\nb", Err(Errno::NXIO)),
        ] {
            assert_eq!(Name::read(text.as_bytes()), name, "{text}");
        }
        assert_eq!(Name::read(b"a\0b"), port("a"));
        assert_eq!(Name::read(&[0xff]), Err(Errno::NXIO));
        assert_eq!(Name::read(&[b'a'; 64]), Err(Errno::NXIO));
    }

    #[test]
    fn words_of_pipes_are_numbers_of_the_upper_half() {
        let words = ["pipeid1", "pipeid2", "a", "b_1"].map(|word| pipe_number(word).unwrap());
        assert!(words.iter().all(|number| *number >= 0x8000));
        assert!(words.windows(2).all(|two| two[0] != two[1]));
        assert_eq!((pipe_number(""), pipe_number("a-b")), (None, None));
    }

    #[test]
    fn names_are_written_as_they_are_read() {
        for text in ["a", "p{7", "p}0"] {
            assert_eq!(Name::read(text.as_bytes()).unwrap().to_string(), text);
        }
    }

    #[test]
    fn sockets_elsewhere_are_found_by_name_and_ending() {
        let sockets = "a=/x/a.sock:b=/x/b.pipes:b=/x/b.netmap:c".into();
        let find = |name, ending| listed(&sockets, name, ending);
        assert_eq!(find("a", "netmap"), Some("/x/a.sock".into()));
        assert_eq!(find("a", "pipes"), Some("/x/a.sock".into()));
        assert_eq!(find("b", "netmap"), Some("/x/b.netmap".into()));
        assert_eq!(find("b", "pipes"), Some("/x/b.pipes".into()));
        assert_eq!(find("c", "pipes"), None);
    }
}
