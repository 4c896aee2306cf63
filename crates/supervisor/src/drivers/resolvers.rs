//! The host's resolvers, out of `/etc/resolv.conf` (resolv.conf(5)): a driver cannot open it.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// The file.
const PATH: &str = "/etc/resolv.conf";
/// Time between two looks at it.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most resolvers that are used; the C library uses three.
const RESOLVERS_MAX: usize = 8;
/// Most bytes of the file that are read.
const FILE_MAX: u64 = 64 << 10;

/// By which a changed file is known: device, inode, length, and time of its last change.
type Stamp = (u64, u64, u64, i64, i64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HostResolvers {
    all: Vec<IpAddr>,
    stamp: Option<Stamp>,
    looked: Option<Instant>,
}

impl HostResolvers {
    /// Returns the resolvers of now. The file is looked at once a second at most.
    pub(super) fn get(&mut self, now: Instant) -> &[IpAddr] {
        let is_due = |looked: Instant| now.saturating_duration_since(looked) >= INTERVAL;
        if self.looked.is_none_or(is_due) {
            self.looked = Some(now);
            self.look();
        }
        &self.all
    }

    fn look(&mut self) {
        let stamp = fs::metadata(PATH).ok().map(|of| {
            let (seconds, nanoseconds) = (of.ctime(), of.ctime_nsec());
            (of.dev(), of.ino(), of.len(), seconds, nanoseconds)
        });
        if stamp == self.stamp {
            return;
        }
        let is_short = stamp.is_some_and(|(_, _, len, ..)| len <= FILE_MAX);
        match fs::read_to_string(PATH) {
            Ok(text) if is_short => self.all = parse(&text),
            Ok(_) => tracing::warn!("{PATH} is too long: no resolvers"),
            Err(error) => tracing::warn!("{PATH}: {error}: no resolvers"),
        }
        self.stamp = stamp;
    }
}

/// Returns the addresses of `nameserver` lines. One with a scope is left out: it is reached over a
/// link that a driver does not know.
fn parse(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let is_server = words.next() == Some("nameserver");
        words.next().filter(|_| is_server)?.parse::<IpAddr>().ok()
    };
    let all = text.lines().filter_map(address);
    let all = all.filter(|of| !of.is_unspecified() && !of.is_multicast());
    all.take(RESOLVERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_listed_in_their_order() {
        let text = "# nameserver 192.0.2.9\nsearch example\nnameserver 192.0.2.1\n\
                    nameserver\t2001:db8::1 # second\nnameserver fe80::1%eth0\nnameserver 0.0.0.0\n\
                    nameserver 127.0.0.53\nnameservers 192.0.2.2\n";
        let expected = ["192.0.2.1", "2001:db8::1", "127.0.0.53"];
        assert_eq!(
            parse(text),
            expected.map(|text| text.parse::<IpAddr>().unwrap())
        );
        assert_eq!(
            parse(&"nameserver 192.0.2.1\n".repeat(9)).len(),
            RESOLVERS_MAX
        );
    }
}
