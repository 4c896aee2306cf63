//! The host's resolvers, out of `/etc/resolv.conf` (resolv.conf(5)): a driver cannot open it.
//!
//! The file is bytes. A line that is not understood costs that line, and a file that cannot be read
//! costs nothing: the resolvers before stay in use.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use thiserror::Error;

/// The file.
const PATH: &str = "/etc/resolv.conf";
/// Time between two looks at it.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most resolvers that are used; the C library uses three.
const RESOLVERS_MAX: usize = ipc::user_reports::USER_RESOLVERS;
/// Most bytes of the file that are read.
const FILE_MAX: usize = 64 << 10;
/// Most lines that are named in the log, and most bytes of one.
const NAMED_MAX: usize = 8;
const SHOWN_MAX: usize = 60;
/// The C library's resolver without a `nameserver` line.
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Port of resolvers, which the file cannot change.
const PORT: u16 = 53;
/// Words of lines that say nothing about the addresses of resolvers.
const OTHERS: [&[u8]; 4] = [b"search", b"domain", b"sortlist", b"options"];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HostResolvers {
    all: Vec<SocketAddr>,
    /// The file, or why it could not be read.
    seen: Option<Result<Contents, Errno>>,
    looked: Option<Instant>,
}

impl HostResolvers {
    /// Returns the resolvers of now. The file is looked at once a second at most.
    pub(super) fn get(&mut self, now: Instant) -> &[SocketAddr] {
        let is_due = |looked: Instant| now.saturating_duration_since(looked) >= INTERVAL;
        if self.looked.is_none_or(is_due) {
            self.looked = Some(now);
            for note in self.look(PATH) {
                tracing::warn!("{note}");
            }
        }
        &self.all
    }

    /// Reads the file; returns what there is to say about it, if it has changed.
    fn look(&mut self, path: &str) -> Vec<String> {
        let found = read(path);
        // Read anew each time: links come and go.
        let found = found.map(|bytes| parse(&bytes, link));
        let found = found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        if self.seen.as_ref() == Some(&found) {
            return Vec::new();
        }
        let is_new = self.all.is_empty();
        let mut notes = match &found {
            Ok(contents) => {
                self.all = contents.resolvers();
                contents.notes(path)
            }
            Err(Errno::NOENT) if self.all.is_empty() => {
                self.all = vec![SocketAddr::new(LOCAL, PORT)];
                vec![format!("{path}: no such file")]
            }
            Err(error) => vec![format!("{path} cannot be read: {error}")],
        };
        if self.all.is_empty() {
            notes.push(format!("{path}: there are no resolvers"));
        } else if !notes.is_empty() {
            let ip = |of: &SocketAddr| of.to_string().trim_end_matches(":53").to_owned();
            let all: Vec<String> = self.all.iter().map(ip).collect();
            let stay = match found.is_err() && !is_new {
                true => "resolvers stay in use",
                false => "resolvers in use",
            };
            notes.push(format!("{path}: {stay}: {}", all.join(", ")));
        }
        self.seen = Some(found);
        notes
    }
}

/// Returns the first bytes of a file, one more than are used. What is no plain file does not block.
fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let mut bytes = Vec::new();
    let limit = FILE_MAX as u64 + 1;
    options.open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The reason why a line is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum LineError {
    #[error("not understood")]
    Unknown,
    #[error("not an address")]
    NoAddress,
    #[error("there is no such link")]
    NoLink,
    #[error("not the address of a host")]
    NoHost,
    #[error("more than {RESOLVERS_MAX}")]
    TooMany,
}

/// The contents of the file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    addresses: Vec<SocketAddr>,
    /// Lines that are not used, by number from 1, as the log shows them, and why.
    bad: Vec<(usize, String, LineError)>,
    has_server: bool,
    is_long: bool,
}

/// Reads the lines of a file; `link` is [`link`].
fn parse(bytes: &[u8], link: impl Fn(&str) -> Option<u32>) -> Contents {
    let mut contents = Contents {
        is_long: bytes.len() > FILE_MAX,
        ..Contents::default()
    };
    let bytes = match contents.is_long {
        // The last line may be a part.
        true => bytes[..FILE_MAX]
            .rsplitn(2, |byte| *byte == b'\n')
            .nth(1)
            .unwrap_or_default(),
        false => bytes,
    };
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || matches!(line[0], b'#' | b';') {
            continue;
        }
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let used = match words.next() {
            Some(b"nameserver") => {
                contents.has_server = true;
                let address = server(words.next().unwrap_or_default(), &link);
                address.and_then(|address| contents.add(address))
            }
            Some(word) if OTHERS.contains(&word) => Ok(()),
            _ => Err(LineError::Unknown),
        };
        if let Err(reason) = used {
            let shown = line[..line.len().min(SHOWN_MAX)].escape_ascii();
            contents.bad.push((at + 1, shown.to_string(), reason));
        }
    }
    contents
}

/// Returns the address of a resolver.
fn server(word: &[u8], link: impl Fn(&str) -> Option<u32>) -> Result<SocketAddr, LineError> {
    let text = str::from_utf8(word).map_err(|_| LineError::NoAddress)?;
    if let Some((address, name)) = text.split_once('%') {
        let address = address.parse().map_err(|_| LineError::NoAddress)?;
        let is_of_link = Ipv6Addr::is_unicast_link_local(&address);
        let index = link(name).filter(|_| is_of_link);
        let index = index.ok_or(LineError::NoLink)?;
        return Ok(SocketAddrV6::new(address, PORT, 0, index).into());
    }
    let address = text.parse::<IpAddr>().map_err(|_| LineError::NoAddress)?;
    match address.is_unspecified() || address.is_multicast() {
        true => Err(LineError::NoHost),
        false => Ok(SocketAddr::new(address, PORT)),
    }
}

/// Returns the index of a link by its name or its number (netdevice(7)).
fn link(name: &str) -> Option<u32> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    let number = || name.parse().ok();
    let index = rustix::net::netdevice::name_to_index(&socket, name);
    index.ok().or_else(number).filter(|index| *index != 0)
}

/// Whether a resolver is reached over one link of the host alone.
pub(super) fn is_of_link(resolver: &SocketAddr) -> bool {
    matches!(resolver, SocketAddr::V6(v6) if v6.scope_id() != 0)
}

impl Contents {
    /// Adds a resolver.
    fn add(&mut self, address: SocketAddr) -> Result<(), LineError> {
        if self.addresses.contains(&address) {
            return Ok(());
        }
        if self.addresses.len() >= RESOLVERS_MAX {
            return Err(LineError::TooMany);
        }
        self.addresses.push(address);
        Ok(())
    }

    fn resolvers(&self) -> Vec<SocketAddr> {
        let local = (!self.has_server).then_some(SocketAddr::new(LOCAL, PORT));
        self.addresses.iter().copied().chain(local).collect()
    }

    fn notes(&self, path: &str) -> Vec<String> {
        let named = self.bad.iter().take(NAMED_MAX);
        let named = named
            .map(|(line, shown, why)| format!("{path}, line {line} is not used: `{shown}` {why}"));
        let mut notes: Vec<String> = named.collect();
        if let more @ 1.. = self.bad.len().saturating_sub(NAMED_MAX) {
            notes.push(format!("{path}: {more} more lines are not used"));
        }
        if self.is_long {
            notes.push(format!(
                "{path}: what is behind {FILE_MAX} bytes is not read"
            ));
        }
        if !self.has_server {
            notes.push(format!("{path}: no line has a nameserver"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn addresses(all: &[SocketAddr]) -> Vec<String> {
        all.iter().map(|of| of.ip().to_string()).collect()
    }

    #[test]
    fn servers_are_listed_in_their_order() {
        let text = b"# nameserver 192.0.2.9\nsearch example\nnameserver 192.0.2.1\r\n\
                     nameserver\t2001:db8::1 # second\nnameserver fe80::1%eth0\n\
                     nameserver 0.0.0.0\nnameserver 127.0.0.53\nnameservers 192.0.2.2\n\
                     nameserver 192.0.2.1\noptions edns0\n";
        let contents = parse(text, |_| None);
        assert_eq!(
            addresses(&contents.resolvers()),
            ["192.0.2.1", "2001:db8::1", "127.0.0.53"]
        );
        let lines: Vec<usize> = contents.bad.iter().map(|(line, ..)| *line).collect();
        assert_eq!(lines, [5, 6, 8]);
        let many: String = (1..=9)
            .map(|n| format!("nameserver 192.0.2.{n}\n"))
            .collect();
        let contents = parse(many.as_bytes(), |_| None);
        assert_eq!(contents.resolvers().len(), RESOLVERS_MAX);
        let expected = "file, line 9 is not used: `nameserver 192.0.2.9` more than 8";
        assert_eq!(contents.notes("file"), [expected]);
    }

    #[test]
    fn a_line_that_is_not_understood_costs_that_line() {
        for bad in [
            &b"; caf\xe9"[..],
            b"search caf\xe9.example",
            b"\xff\xfe\0",
            b"nameserver \xe9",
            b"nameserver 192.0.2.1#5353",
            b"nameserver 192.0.2.1:53",
            b"nameserver",
            b"\0",
        ] {
            let text = [b"nameserver 192.0.2.7\n", bad, b"\nnameserver 192.0.2.8"].concat();
            let contents = parse(&text, |_| None);
            let all = addresses(&contents.resolvers());
            assert_eq!(all, ["192.0.2.7", "192.0.2.8"], "{}", bad.escape_ascii());
            let is_silent = matches!(bad[0], b';' | b's');
            let lines: Vec<usize> = contents.bad.iter().map(|(line, ..)| *line).collect();
            let expected: &[usize] = if is_silent { &[] } else { &[2] };
            assert_eq!(lines, expected, "{}", bad.escape_ascii());
        }
        let notes = parse(b"nameserver caf\xe9\n", |_| None).notes("file");
        let expected = r"file, line 1 is not used: `nameserver caf\xe9` not an address";
        assert_eq!(notes, [expected]);
        let notes = parse(&b"what\n".repeat(1000), |_| None).notes("file");
        assert_eq!(notes.len(), NAMED_MAX + 2);
    }

    #[test]
    fn a_resolver_on_a_link_has_the_links_number() {
        let text = b"nameserver fe80::1%eth0\nnameserver fe80::1%eth1\nnameserver fe80::1%4\n\
                     nameserver 2001:db8::1%eth0\nnameserver 192.0.2.1%eth0\n";
        let known = |name: &str| name.parse().ok().or((name == "eth0").then_some(7));
        let contents = parse(text, known);
        let all = contents.resolvers();
        let scopes = all.iter().map(|of| match of {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        });
        assert_eq!(scopes.collect::<Vec<_>>(), [7, 4]);
        assert!(all.iter().all(is_of_link));
        let lines: Vec<usize> = contents.bad.iter().map(|(line, ..)| *line).collect();
        assert_eq!(lines, [2, 4, 5]);
        assert_eq!(link("lo"), Some(1));
        assert_eq!(
            (link("1"), link("0"), link("no-such-link")),
            (Some(1), None, None)
        );
    }

    #[test]
    fn a_long_file_counts_as_far_as_it_is_read() {
        let text = [
            b"nameserver 192.0.2.7\nsearch ",
            &b"a.example ".repeat(FILE_MAX / 10)[..],
            b"\nnameserver 192.0.2.8\n",
        ];
        let contents = parse(&text.concat(), |_| None);
        assert_eq!(addresses(&contents.resolvers()), ["192.0.2.7"]);
        assert!(contents.is_long && contents.bad.is_empty());
    }

    #[test]
    fn the_resolvers_before_stay_in_use_where_the_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("resolv.conf");
        let path = file.to_str().unwrap();
        let mut resolvers = HostResolvers::default();
        let local = vec![
            format!("{path}: no such file"),
            format!("{path}: resolvers in use: 127.0.0.1"),
        ];
        assert_eq!(resolvers.look(path), local);
        assert_eq!(resolvers.look(path), [] as [&str; 0]);

        fs::write(&file, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(resolvers.look(path), [] as [&str; 0]);
        assert_eq!(addresses(&resolvers.all), ["192.0.2.1"]);
        // Gone, then a folder, then a socket of no server: said once each.
        fs::remove_file(&file).unwrap();
        let notes = resolvers.look(path);
        assert!(notes[0].contains("cannot be read"), "{notes:?}");
        assert!(notes[1].ends_with("resolvers stay in use: 192.0.2.1"));
        assert_eq!(resolvers.look(path), [] as [&str; 0]);
        fs::create_dir(&file).unwrap();
        assert_eq!(resolvers.look(path).len(), 2);
        assert_eq!(resolvers.look(path), [] as [&str; 0]);
        fs::remove_dir(&file).unwrap();
        assert_eq!(addresses(&resolvers.all), ["192.0.2.1"]);

        // Another file of the same length, and the same file again.
        fs::write(&file, "nameserver 192.0.2.2\n").unwrap();
        assert_eq!(resolvers.look(path), [] as [&str; 0]);
        assert_eq!(addresses(&resolvers.all), ["192.0.2.2"]);
        let other = folder.path().join("other");
        fs::write(&other, "nameserver 192.0.2.3\n").unwrap();
        fs::rename(&other, &file).unwrap();
        resolvers.look(path);
        assert_eq!(addresses(&resolvers.all), ["192.0.2.3"]);
        // resolv.conf(5): the host itself, where the file names none.
        fs::write(&file, "search example\n").unwrap();
        assert_eq!(resolvers.look(path).len(), 2);
        assert_eq!(addresses(&resolvers.all), ["127.0.0.1"]);
        fs::write(&file, "nameserver fe80::1%no-such-link\n").unwrap();
        let notes = resolvers.look(path);
        assert!(notes[1].ends_with("there are no resolvers"), "{notes:?}");
    }

    #[test]
    fn a_file_that_nothing_writes_to_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("resolv.conf");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &file,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let mut resolvers = HostResolvers::default();
        resolvers.look(file.to_str().unwrap());
        assert_eq!(addresses(&resolvers.all), ["127.0.0.1"]);
    }
}
