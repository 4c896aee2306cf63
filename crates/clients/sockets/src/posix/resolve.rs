//! Names of hosts, by the port's resolvers (RFC 1035, over UDP).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use interpose::Mask;
use libc::{POLLIN, c_int};
use rustix::io::Errno;

use super::{config, plug_in};
use crate::net::{Interest, Net};
use crate::random;
use crate::stack::Kind;

/// Time for an answer, and questions to each resolver.
const ANSWER: Duration = Duration::from_secs(3);
const QUESTIONS: usize = 2;
/// Bytes of the longest answer.
const LONGEST: usize = 1472;
/// Addresses that are taken of an answer.
const MOST: usize = 16;
const HEADER: usize = 12;
/// Flags of the header, and response codes of answers (RFC 1035, section 4.1.1).
const RESPONSE: u16 = 1 << 15;
const RCODE: u16 = 0xf;
const NO_ERROR: u16 = 0;
const NO_NAME: u16 = 3;
/// Types of records.
const A: u16 = 1;
const AAAA: u16 = 28;

/// Looks a name up. `None`: the C library is to do that. Else its addresses, which may be none.
#[must_use]
pub fn resolve(name: &str, family: c_int) -> Option<Vec<IpAddr>> {
    if is_in_hosts(name) {
        return None;
    }
    let net = plug_in(config()?).ok()?;
    let resolvers = net.resolvers();
    if resolvers.is_empty() {
        return None;
    }
    let has_ipv6 = || net.addresses().iter().any(|own| own.address.is_ipv6());
    let mut kinds = Vec::new();
    if family != libc::AF_INET6 {
        kinds.push(A);
    }
    if family == libc::AF_INET6 || family == libc::AF_UNSPEC && has_ipv6() {
        kinds.push(AAAA);
    }
    let mut found = Vec::new();
    for kind in kinds {
        found.extend(look_up(net, &resolvers, name, kind).unwrap_or_default());
    }
    Some(found)
}

/// Whether the host's own file has a name (hosts(5)).
fn is_in_hosts(name: &str) -> bool {
    lists_name(&fs::read("/etc/hosts").unwrap_or_default(), name)
}

/// Whether a file of this form, which is bytes, has a name.
fn lists_name(hosts: &[u8], name: &str) -> bool {
    hosts.split(|byte| *byte == b'\n').any(|line| {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let words = line.split(u8::is_ascii_whitespace);
        let mut names = words.filter(|word| !word.is_empty()).skip(1);
        names.any(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// Asks one resolver after the other. `None`: none has answered.
fn look_up(net: &Net, resolvers: &[IpAddr], name: &str, kind: u16) -> Option<Vec<IpAddr>> {
    for resolver in resolvers.iter().cycle().take(resolvers.len() * QUESTIONS) {
        // A question has a port of its own, as well as a number: who answers in place of the
        // resolver must guess both (RFC 5452, section 9.2).
        let socket = Asking {
            net,
            id: net.open(Kind::Datagram).ok()?,
        };
        let question = question(random() as u16, name, kind)?;
        if let Some(found) = socket.ask(SocketAddr::new(*resolver, 53), &question, kind) {
            return Some(found);
        }
    }
    None
}

/// A socket, closed at the end.
struct Asking<'a> {
    net: &'a Net,
    id: usize,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.net.close(self.id);
    }
}

impl Asking<'_> {
    fn ask(&self, resolver: SocketAddr, question: &[u8], kind: u16) -> Option<Vec<IpAddr>> {
        self.net.connect(self.id, resolver).ok()?;
        self.net.send(self.id, question, None).ok()?;
        let until = sys::time::monotonic() + ANSWER;
        let mut answer = [0; LONGEST];
        loop {
            match self.net.receive(self.id, &mut answer, false) {
                Ok(received) => match read(question, &answer[..received.len], kind) {
                    Reading::Found(found) => return Some(found),
                    Reading::Failed => return None,
                    Reading::Other => {}
                },
                Err(Errno::AGAIN) => {}
                Err(_) => return None,
            }
            let left = until.saturating_sub(sys::time::monotonic());
            if left.is_zero() {
                return None;
            }
            let interest = Interest {
                id: self.id,
                events: POLLIN,
                known: None,
            };
            self.net
                .wait(&[interest], &mut [], Some(left), Mask::NONE)
                .ok()?;
        }
    }
}

/// A question with recursion desired. `None`: it is no name.
fn question(number: u16, name: &str, kind: u16) -> Option<Vec<u8>> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let name = name.strip_suffix('.').unwrap_or(name);
    for label in name.split('.') {
        let len = u8::try_from(label.len())
            .ok()
            .filter(|len| (1..64).contains(len))?;
        bytes.push(len);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    (bytes.len() <= HEADER + 255 + 4).then_some(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([field[0], field[1]]))
}

/// The place after a name.
fn behind_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            // The rest is elsewhere.
            len if len >= 0xc0 => return Some(at + 2),
            len => at += 1 + usize::from(len),
        }
    }
}

/// The meaning of a message that came from a resolver.
#[derive(PartialEq, Debug)]
enum Reading {
    /// The addresses, which may be none.
    Found(Vec<IpAddr>),
    /// An error, or something else than an answer: another resolver may have one.
    Failed,
    /// It may come from elsewhere: the answer may come yet.
    Other,
}

/// Reads a message.
fn read(question: &[u8], answer: &[u8], kind: u16) -> Reading {
    let flags = u16_at(answer, 2).unwrap_or_default();
    if flags & RESPONSE == 0 || answer.get(..2) != question.get(..2) {
        return Reading::Other;
    }
    let is_same = answer.get(4..6) == Some(&[0, 1])
        && answer.get(HEADER..question.len()) == question.get(HEADER..);
    match flags & RCODE {
        NO_ERROR | NO_NAME if is_same => {}
        _ => return Reading::Failed,
    }
    Reading::Found(addresses(question, answer, kind).unwrap_or_default())
}

/// The addresses of an answer.
fn addresses(question: &[u8], answer: &[u8], kind: u16) -> Option<Vec<IpAddr>> {
    let records = u16_at(answer, 6)?;
    let mut at = question.len();
    let mut found = Vec::new();
    // A broken answer ends where it breaks. Names that lead elsewhere are followed by the resolver.
    for _ in 0..records {
        let next = behind_name(answer, at).and_then(|fields| {
            let (of, class) = (u16_at(answer, fields)?, u16_at(answer, fields + 2)?);
            let len = usize::from(u16_at(answer, fields + 8)?);
            let data = answer.get(fields + 10..fields + 10 + len)?;
            if (of, class) == (kind, 1) && found.len() < MOST {
                found.extend(address(data));
            }
            Some(fields + 10 + len)
        });
        let Some(next) = next else {
            break;
        };
        at = next;
    }
    Some(found)
}

fn address(data: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(data)
        .map(Ipv4Addr::from)
        .map(IpAddr::V4);
    let ipv6 = || {
        <[u8; 16]>::try_from(data)
            .map(Ipv6Addr::from)
            .map(IpAddr::V6)
    };
    ipv4.or_else(|_| ipv6()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with these records: type and data.
    fn answer(question: &[u8], records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut answer = question.to_vec();
        answer[2] |= 0x80;
        answer[7] = records.len() as u8;
        for (kind, data) in records {
            answer.extend([0xc0, 12]);
            answer.extend(kind.to_be_bytes());
            answer.extend([0, 1, 0, 0, 0, 60]);
            answer.extend((data.len() as u16).to_be_bytes());
            answer.extend(*data);
        }
        answer
    }

    #[test]
    fn a_line_of_hosts_that_is_no_text_costs_that_line() {
        let hosts = b"# caf\xe9\n10.0.0.9 caf\xe9 old\n10.0.0.1\tVm1 vm1.lan # vm2\n\xff\n";
        for (name, is_there) in [
            ("vm1", true),
            ("vm1.LAN", true),
            ("old", true),
            ("vm2", false),
        ] {
            assert_eq!(lists_name(hosts, name), is_there, "{name}");
        }
        assert!(!lists_name(hosts, "10.0.0.1"));
    }

    #[test]
    fn addresses_of_an_answer() {
        let question = question(7, "vm1.internal", A).unwrap();
        let records: [(u16, &[u8]); 3] = [(5, b"\x01x\xc0\x0c"), (A, &[10, 0, 2, 15]), (A, &[1])];
        let whole = answer(&question, &records);
        let found = vec![IpAddr::from([10, 0, 2, 15])];
        assert_eq!(read(&question, &whole, A), Reading::Found(found));
        assert_eq!(read(&question, &whole, AAAA), Reading::Found(Vec::new()));
        for len in 0..whole.len() {
            if let Reading::Found(found) = read(&question, &whole[..len], A) {
                assert!(found.len() <= 1, "{len} bytes");
            }
        }
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let asked = question(7, "vm1.internal", A).unwrap();
        for (other, expected) in [
            (question(8, "vm1.internal", A), Reading::Other),
            (question(7, "vm2.internal", A), Reading::Failed),
            (question(7, "vm1.internal", AAAA), Reading::Failed),
        ] {
            let other = answer(&other.unwrap(), &[(A, &[10, 0, 2, 15])]);
            assert_eq!(read(&asked, &other, A), expected);
        }
        assert_eq!(read(&asked, &asked, A), Reading::Other);
    }

    #[test]
    fn an_error_is_no_answer() {
        let asked = question(7, "vm1.internal", A).unwrap();
        for code in 0..16 {
            let mut message = answer(&asked, &[]);
            message[3] |= code;
            let expected = match code {
                0 | 3 => Reading::Found(Vec::new()),
                _ => Reading::Failed,
            };
            assert_eq!(read(&asked, &message, A), expected, "{code}");
        }
        // Servers that do not understand a question return the header alone.
        let mut head = answer(&asked, &[])[..HEADER].to_vec();
        (head[3], head[5]) = (1, 0);
        assert_eq!(read(&asked, &head, A), Reading::Failed);
    }

    #[test]
    fn names_that_are_none() {
        let long = "a".repeat(64);
        let many = "a.".repeat(200);
        for name in ["", ".", "a..b", long.as_str(), many.as_str()] {
            assert_eq!(question(1, name, A), None, "{name}");
        }
    }
}
