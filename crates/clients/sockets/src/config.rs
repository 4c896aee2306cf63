//! The settings of a plug-in, and their form in environment variables.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The key of the port's socket.
pub const SOCKET: &str = "SOCKET";
/// All keys, the socket's first.
pub const KEYS: [&str; 8] = [
    SOCKET, "ADDRESS", "ROUTE", "DNS", "MAC", "MTU", "BUFFER", "SPIN_US",
];
/// Addresses and routes at most: as many as the stack has room for, but for those of DHCP.
const MOST: usize = 7;
/// Bytes of a socket's buffers.
const BUFFERS: std::ops::RangeInclusive<usize> = 4096..=1 << 28;
/// Bytes of an IP packet.
const MTUS: std::ops::RangeInclusive<u16> = 1280..=9000;
/// The largest bound of a look.
const MOST_SPIN_US: u64 = 1_000_000;

/// The environment variable of a key.
#[must_use]
pub fn variable(key: &str) -> String {
    format!("LASTHOP_NET_{key}")
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub prefix: u8,
}

/// The way to a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The network.
    pub to: Network,
    /// The router's address.
    pub by: IpAddr,
}

/// The settings of a plug-in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The socket of the port.
    pub socket: PathBuf,
    /// Addresses; none: by DHCP.
    pub addresses: Vec<Network>,
    /// Routes; by DHCP there is one more.
    pub routes: Vec<Route>,
    /// Resolvers; none: those of DHCP.
    pub dns: Vec<IpAddr>,
    /// The address of the interface; `None`: made of the socket's path and the machine's id, the
    /// same each time.
    pub mac: Option<[u8; 6]>,
    /// Bytes of an IP packet.
    pub mtu: u16,
    /// Bytes of each buffer of a socket.
    pub buffer: usize,
    /// How long a blocking call looks for frames before it sleeps, at most.
    pub longest_look: Duration,
}

impl Network {
    /// Reads `ADDRESS/PREFIX`.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: expected ADDRESS/PREFIX");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        match prefix <= most {
            true => Ok(Self { address, prefix }),
            false => Err(format!("{text}: a prefix has at most {most} bits")),
        }
    }
}

impl Route {
    /// Reads `NETWORK/PREFIX=ROUTER`, or `ROUTER` for the default route.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let router = |text: &str| text.parse::<IpAddr>();
        let wrong = || format!("{text}: expected NETWORK/PREFIX=ROUTER, or ROUTER");
        let Some((to, by)) = text.split_once('=') else {
            let by = router(text).map_err(|_| wrong())?;
            let everything = if by.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            let to = Network::parse(everything)?;
            return Ok(Self { to, by });
        };
        let by = router(by).map_err(|_| wrong())?;
        let to = Network::parse(to)?;
        match to.address.is_ipv4() == by.is_ipv4() {
            true => Ok(Self { to, by }),
            false => Err(format!(
                "{text}: network and router differ in their version of IP"
            )),
        }
    }
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("{text}: expected six pairs of hexadecimal digits with colons between");
    let parts: Vec<&str> = text.split(':').collect();
    let parts: [&str; 6] = parts.try_into().map_err(|_| wrong())?;
    let mut mac = [0; 6];
    for (byte, part) in mac.iter_mut().zip(parts) {
        let is_pair = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        let pair = is_pair.then(|| u8::from_str_radix(part, 16).ok()).flatten();
        *byte = pair.ok_or_else(wrong)?;
    }
    match mac[0] & 1 {
        0 => Ok(mac),
        _ => Err(format!("{text}: expected the address of one station")),
    }
}

/// Reads a number of bytes, with `K` or `M` for their powers of 1024.
fn bytes(text: &str) -> Option<usize> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text
            .strip_suffix(['M', 'm'])
            .map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

fn list<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    let all: Vec<T> = parts
        .map(|part| read(part.trim()))
        .collect::<Result<_, _>>()?;
    match all.len() <= MOST {
        true => Ok(all),
        false => Err(format!("more than {MOST}")),
    }
}

impl Config {
    /// The defaults, for the port with this socket.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            addresses: Vec::new(),
            routes: Vec::new(),
            dns: Vec::new(),
            mac: None,
            mtu: 1500,
            buffer: 256 << 10,
            longest_look: polling::LONGEST_LOOK,
        }
    }

    /// The settings of environment variables, as `lasthop net run` sets them. `None`: there is no
    /// `LASTHOP_NET_SOCKET`.
    ///
    /// # Errors
    /// The variable that is wrong, and why.
    pub fn from_environment() -> Result<Option<Self>, String> {
        let mut pairs = Vec::new();
        for key in KEYS {
            if let Some(value) = std::env::var_os(variable(key)) {
                pairs.push((key, value));
            }
        }
        if pairs.first().is_none_or(|(key, _)| *key != SOCKET) {
            return Ok(None);
        }
        Self::from_pairs(pairs.iter().map(|(key, value)| (*key, value.as_os_str()))).map(Some)
    }

    /// The settings of lines of `KEY=VALUE`.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let pairs = lines.map(|line| line.split_once('=').unwrap_or((line, "")));
        Self::from_pairs(pairs.map(|(key, value)| (key.trim(), OsStr::new(value))))
    }

    /// The settings of keys with values. An empty value is the default.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn from_pairs<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a OsStr)>,
    ) -> Result<Self, String> {
        let mut config = Self::new("");
        for (key, value) in pairs {
            if !KEYS.contains(&key) {
                return Err(format!("{key}: unknown setting"));
            } else if key == SOCKET {
                config.socket = value.into();
            } else if !value.is_empty() {
                let value = value.to_str().ok_or_else(|| format!("{key}: not text"))?;
                let set = config.set(key, value);
                set.map_err(|error| format!("{key}: {error}"))?;
            }
        }
        match config.socket.as_os_str().is_empty() {
            true => Err(format!("{SOCKET}: the port's socket is missing")),
            false => Ok(config),
        }
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// The reason why it cannot be set.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "ADDRESS" => self.addresses = list(value, Network::parse)?,
            "ROUTE" => self.routes = list(value, Route::parse)?,
            "DNS" => {
                let address = |text: &str| {
                    let parsed = text.parse();
                    parsed.map_err(|_| format!("{text}: expected an address"))
                };
                self.dns = list(value, address)?;
            }
            "MAC" => self.mac = Some(mac(value)?),
            "MTU" => {
                let mtu = value.parse().ok().filter(|mtu| MTUS.contains(mtu));
                self.mtu = mtu.ok_or_else(|| format!("{value}: expected {MTUS:?}"))?;
            }
            "BUFFER" => {
                let buffer = bytes(value).filter(|buffer| BUFFERS.contains(buffer));
                self.buffer = buffer.ok_or_else(|| format!("{value}: expected 4K to 256M"))?;
            }
            "SPIN_US" => {
                let spin = value.parse().ok().filter(|spin| *spin <= MOST_SPIN_US);
                let spin = spin.ok_or_else(|| format!("{value}: expected at most a second"))?;
                self.longest_look = Duration::from_micros(spin);
            }
            _ => return Err("unknown setting".to_owned()),
        }
        Ok(())
    }

    /// The address of the interface.
    pub(crate) fn hardware_address(&self) -> [u8; 6] {
        self.mac.unwrap_or_else(|| {
            let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
            made_of(&self.socket, &machine)
        })
    }
}

/// An address of our own (IEEE 802: locally administered), the same for the same bytes. FNV-1a.
fn made_of(path: &Path, machine: &[u8]) -> [u8; 6] {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let bytes = path.as_os_str().as_encoded_bytes().iter().chain(machine);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = (hash ^ hash >> 40).to_be_bytes();
    [0x02, a ^ e, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables() {
        let mut config = Config::new("/run/app.sock");
        for (key, value) in [
            ("ADDRESS", "10.0.0.5/24,fd00::5/64"),
            ("ROUTE", "10.0.0.1, 10.9.0.0/16=10.0.0.9"),
            ("DNS", "10.0.0.3"),
            ("MAC", "02:00:00:00:00:07"),
            ("MTU", "9000"),
            ("BUFFER", "1M"),
            ("SPIN_US", "0"),
        ] {
            config.set(key, value).unwrap();
        }
        assert_eq!(config.addresses.len(), 2);
        assert_eq!(config.routes[0].to.prefix, 0);
        assert_eq!(config.routes[1].by, "10.0.0.9".parse::<IpAddr>().unwrap());
        assert_eq!(config.hardware_address(), [2, 0, 0, 0, 0, 7]);
        assert_eq!((config.mtu, config.buffer), (9000, 1 << 20));
        assert_eq!(config.longest_look, Duration::ZERO);
    }

    #[test]
    fn values_that_make_no_sense() {
        let mut config = Config::new("/run/app.sock");
        for (key, value) in [
            ("ADDRESS", "10.0.0.5"),
            ("ADDRESS", "10.0.0.5/33"),
            ("ADDRESS", "here/24"),
            ("ROUTE", "10.0.0.0/8=fd00::1"),
            ("ROUTE", "away"),
            ("DNS", "resolver"),
            ("MAC", "02:00:00:00:00"),
            ("MAC", "01:00:00:00:00:07"),
            ("MAC", "+2:00:00:00:00:07"),
            ("MTU", "100"),
            ("BUFFER", "1"),
            ("BUFFER", "99999999999999999999K"),
            ("SPIN_US", "-1"),
            ("COLOUR", "red"),
        ] {
            assert!(config.set(key, value).is_err(), "{key} {value}");
        }
        assert_eq!(config, Config::new("/run/app.sock"));
    }

    #[test]
    fn lines_of_text() {
        let config = Config::from_text("SOCKET=/run/a.sock\n\nMTU=1400\nDNS=\n").unwrap();
        assert_eq!((config.mtu, config.dns.len()), (1400, 0));
        assert_eq!(config.socket, Path::new("/run/a.sock"));
        assert!(
            Config::from_text("SOCKET=a\nMTU").is_ok(),
            "an empty value is the default"
        );
        for text in ["", "MTU=1400", "SOCKET=a\nMTU=x", "SOCKET=a\nnothing"] {
            assert!(Config::from_text(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_address_is_the_same_each_time() {
        let one = made_of(Path::new("/run/a.sock"), b"machine");
        assert_eq!(one, made_of(Path::new("/run/a.sock"), b"machine"));
        assert_ne!(one, made_of(Path::new("/run/b.sock"), b"machine"));
        assert_ne!(one, made_of(Path::new("/run/a.sock"), b"another"));
        assert_eq!(one[0], 2);
    }
}
