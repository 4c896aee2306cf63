//! Options and requests (socket(7), tcp(7), ip(7), ipv6(7)).

mod table;
#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int, c_ulong};
use rustix::io::Errno;

use self::table::{Entry, Fate, Of, Value};
use super::{Setting, Socket, lock, socket};
use crate::SAY;
use crate::stack::{Family, KeepAlive, Kind, Options};

/// Bytes of headers of IPv4 and TCP.
const HEADERS: u16 = 40;
/// Requests about interfaces (netdevice(7)), which are the kernel's.
const OF_INTERFACES: std::ops::RangeInclusive<c_ulong> = 0x8910..=0x89ff;
/// Bytes of a buffer that a program can choose.
const BUFFER: (usize, usize) = (4 << 10, 64 << 20);
/// Bits of the traffic class that are the stack's own in TCP (RFC 3168).
const ECN: u8 = 3;
/// Time for the answer to a SYN, and that of the longest of its repetitions (tcp(7)).
const FIRST_SYN: u64 = 1;
const LAST_SYN: u64 = 120;

fn number(value: &[u8]) -> Result<c_int, Errno> {
    let bytes = value.first_chunk().ok_or(Errno::INVAL)?;
    Ok(c_int::from_ne_bytes(*bytes))
}

/// Reads a `struct timeval`; microseconds.
fn micros(value: &[u8]) -> Result<u64, Errno> {
    let (seconds, rest) = value.split_first_chunk::<8>().ok_or(Errno::INVAL)?;
    let part = rest.first_chunk::<8>().ok_or(Errno::INVAL)?;
    let part = u64::try_from(i64::from_ne_bytes(*part)).map_err(|_| Errno::DOM)?;
    if part >= 1_000_000 {
        return Err(Errno::DOM);
    }
    // As in Linux, a time that is over is the shortest one.
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds));
    let micros = |seconds: u64| seconds.saturating_mul(1_000_000).saturating_add(part);
    Ok(seconds.map_or(1, micros))
}

impl Entry {
    /// The value that is kept of one that a program sets.
    fn value_of(&self, value: &[u8]) -> Result<Vec<u8>, Errno> {
        let of_number = |number: c_int| number.to_ne_bytes().to_vec();
        let in_range = |number: c_int, (least, most): (c_int, c_int)| {
            let is_in = (least..=most).contains(&number);
            is_in.then_some(number).ok_or(Errno::INVAL)
        };
        match self.value {
            Value::Flag => Ok(of_number((number(value)? != 0).into())),
            Value::Number(least, most, default) => {
                let given = in_range(number(value)?, (least, most))?;
                let is_default = given == -1 && least == -1;
                Ok(of_number(if is_default { default } else { given }))
            }
            Value::Byte(least, most, default) => {
                match number(value)? {
                    -1 => Ok(of_number(default)),
                    // A type of service is a byte, whatever is above it.
                    given if least == 0 => Ok(of_number(given & most)),
                    given => in_range(given, (least, most)).map(of_number),
                }
            }
            Value::Time => micros(value).map(|_| value[..16].to_vec()),
            Value::Linger => {
                let time = value.get(4..).ok_or(Errno::INVAL)?;
                let on = c_int::from(number(value)? != 0);
                Ok([of_number(on), of_number(number(time)?)].concat())
            }
            Value::Text => Ok(value.to_vec()),
        }
    }

    /// The value before a program has set it.
    fn default(&self) -> Vec<u8> {
        let number = match self.value {
            Value::Number(_, _, default) | Value::Byte(_, _, default) => default,
            Value::Flag => 0,
            Value::Time => return vec![0; 16],
            Value::Linger => return vec![0; 8],
            Value::Text => return Vec::new(),
        };
        number.to_ne_bytes().to_vec()
    }
}

/// setsockopt(2).
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_option(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
    let socket = socket(fd)?;
    let is_short = value.len() < size_of::<c_int>();
    let has_level = level != IPPROTO_TCP || socket.kind == Kind::Stream;
    let is_name = (level, name) == (IPPROTO_TCP, libc::TCP_CONGESTION);
    if is_short && matches!(level, SOL_SOCKET | IPPROTO_TCP) && has_level && !is_name {
        return Err(Errno::INVAL);
    }
    let entry = socket.entry(level, name)?;
    match entry.fate {
        Fate::Read(_) if is_name => {
            let is_own = value.strip_suffix(b"\0").unwrap_or(value) == ALGORITHM;
            return is_own.then_some(()).ok_or(Errno::NOENT);
        }
        Fate::Read(_) => return Err(Errno::NOPROTOOPT),
        Fate::Refused => return Err(socket.refuses(entry.name)),
        Fate::Works | Fate::Partly(_) | Fate::Moot(_) => {}
    }
    let value = match value {
        // Of these a byte is a number too.
        [byte, ..] if is_short && level == IPPROTO_IP => c_int::from(*byte).to_ne_bytes().to_vec(),
        _ => value.to_vec(),
    };
    let value = entry.value_of(&value)?;
    socket.apply((level, name), &value)?;
    let mut settings = lock(&socket.settings);
    settings.retain(|setting| (setting.level, setting.name) != (level, name));
    settings.push(Setting { level, name, value });
    Ok(())
}

/// The name of the only congestion control.
const ALGORITHM: &[u8] = b"none";

impl Socket {
    /// The entry of an option that the socket has.
    fn entry(&self, level: c_int, name: c_int) -> Result<&'static Entry, Errno> {
        let entry = table::find(level, name);
        let entry = entry.filter(|entry| match entry.of {
            Of::All => true,
            Of::Stream => self.kind == Kind::Stream,
            Of::Six => self.domain == libc::AF_INET6,
        });
        entry.ok_or_else(|| self.refuses(&format!("{name} of level {level}")))
    }

    fn refuses(&self, option: &str) -> Errno {
        SAY.once(&format!("option {option} is not supported"));
        Errno::NOPROTOOPT
    }

    fn change(&self, change: impl FnOnce(&mut Options)) -> Result<(), Errno> {
        self.net.change(self.id, change)
    }

    /// Applies a value that was checked.
    fn apply(&self, (level, name): (c_int, c_int), value: &[u8]) -> Result<(), Errno> {
        let given = number(value)?;
        let on = given != 0;
        let byte = u8::try_from(given).unwrap_or(0);
        match (level, name) {
            (SOL_SOCKET, libc::SO_RCVBUF) => {
                self.change(|options| options.buffers.0 = Some(buffer(given)))
            }
            (SOL_SOCKET, libc::SO_SNDBUF) => {
                self.change(|options| options.buffers.1 = Some(buffer(given)))
            }
            (SOL_SOCKET, libc::SO_REUSEADDR) => self.change(|options| options.reuse_address = on),
            (SOL_SOCKET, libc::SO_REUSEPORT) => self.change(|options| options.reuse_port = on),
            (SOL_SOCKET, libc::SO_BROADCAST) => self.change(|options| options.broadcast = on),
            (SOL_SOCKET, libc::SO_LINGER) => {
                let time = number(value.get(4..).unwrap_or_default())?;
                self.change(|options| options.abort = on && time == 0)
            }
            (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                let sends = usize::from(name == libc::SO_SNDTIMEO);
                self.limits[sends].store(micros(value)?, Ordering::Relaxed);
                Ok(())
            }
            (SOL_SOCKET, libc::SO_KEEPALIVE)
            | (IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
                let idle = self.keep_alive((level, name), given);
                self.change(|options| options.keep_alive = idle)
            }
            (IPPROTO_TCP, libc::TCP_NODELAY) => self.change(|options| options.no_delay = on),
            (IPPROTO_TCP, libc::TCP_CORK) => self.change(|options| options.cork = on),
            (IPPROTO_TCP, libc::TCP_QUICKACK) => self.change(|options| options.quick_ack = on),
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                let millis = u64::try_from(given).unwrap_or(0);
                let limit = (millis > 0).then(|| Duration::from_millis(millis));
                self.change(|options| options.user_timeout = limit)
            }
            (IPPROTO_TCP, libc::TCP_SYNCNT) => {
                self.change(|options| options.syn_time = Some(syn_time(byte)))
            }
            (IPPROTO_IP, libc::IP_TTL) | (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                self.change(|options| options.hop_limit = byte)
            }
            (IPPROTO_IP, libc::IP_TOS) | (IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let own = if self.kind == Kind::Stream { ECN } else { 0 };
                self.change(|options| options.traffic_class = byte & !own)
            }
            (IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                if !self.net.is_fresh(self.id) {
                    return Err(Errno::INVAL);
                }
                self.change(|options| options.only = on.then_some(Family::Ipv6))
            }
            _ => Ok(()),
        }
    }

    /// The sum of its options about idle connections, with a new value of one.
    fn keep_alive(&self, option: (c_int, c_int), given: c_int) -> Option<KeepAlive> {
        let value = |level, name| {
            let set = self.setting(level, name).and_then(|set| number(&set).ok());
            let default = || number(&table::find(level, name)?.default()).ok();
            let value = if option == (level, name) {
                Some(given)
            } else {
                set.or_else(default)
            };
            value
                .and_then(|value| u64::try_from(value).ok())
                .unwrap_or(0)
        };
        let [idle, interval, count] = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT]
            .map(|name| value(IPPROTO_TCP, name));
        let is_on = value(SOL_SOCKET, libc::SO_KEEPALIVE) != 0;
        is_on.then(|| KeepAlive {
            idle: Duration::from_secs(idle),
            answer: Duration::from_secs(interval * count),
        })
    }

    /// An option as the program has set it.
    fn setting(&self, level: c_int, name: c_int) -> Option<Vec<u8>> {
        let settings = lock(&self.settings);
        let mut found = settings
            .iter()
            .filter(|setting| (setting.level, setting.name) == (level, name));
        found.next().map(|setting| setting.value.clone())
    }

    /// The value of an option that depends on the socket's state.
    fn value(&self, level: c_int, name: c_int) -> Option<Result<Vec<u8>, Errno>> {
        let number = |value: c_int| Some(Ok(value.to_ne_bytes().to_vec()));
        // As Linux, which counts its own use of memory too.
        let twice = |bytes: usize| c_int::try_from(bytes.saturating_mul(2)).unwrap_or(c_int::MAX);
        let is_stream = self.kind == Kind::Stream;
        match (level, name) {
            (SOL_SOCKET, libc::SO_TYPE) if is_stream => number(libc::SOCK_STREAM),
            (SOL_SOCKET, libc::SO_TYPE) => number(libc::SOCK_DGRAM),
            (SOL_SOCKET, libc::SO_PROTOCOL) if is_stream => number(IPPROTO_TCP),
            (SOL_SOCKET, libc::SO_PROTOCOL) => number(libc::IPPROTO_UDP),
            (SOL_SOCKET, libc::SO_DOMAIN) => number(self.domain),
            (SOL_SOCKET, libc::SO_ERROR) => {
                let error = self.net.take_error(self.id);
                number(error.map_or(0, Errno::raw_os_error))
            }
            (SOL_SOCKET, libc::SO_ACCEPTCONN) => number(c_int::from(self.net.listens(self.id))),
            (SOL_SOCKET, libc::SO_RCVBUF) => number(twice(self.net.buffers(self.id).0)),
            (SOL_SOCKET, libc::SO_SNDBUF) => number(twice(self.net.buffers(self.id).1)),
            (IPPROTO_TCP, libc::TCP_MAXSEG) => number((self.net.mtu() - HEADERS).into()),
            (IPPROTO_TCP, libc::TCP_CONGESTION) => {
                // `TCP_CA_NAME_MAX`.
                let mut name = ALGORITHM.to_vec();
                name.resize(16, 0);
                Some(Ok(name))
            }
            (IPPROTO_TCP, libc::TCP_INFO) => Some(Ok(self.info())),
            (IPPROTO_IP, libc::IP_TOS) | (IPPROTO_IPV6, libc::IPV6_TCLASS) if is_stream => {
                let set = self.setting(level, name);
                let set = set.and_then(|set| set.first().copied()).unwrap_or(0);
                number((set & !ECN).into())
            }
            (IPPROTO_IP, libc::IP_MTU) => match self.net.peer(self.id) {
                Ok(_) => number(self.net.mtu().into()),
                Err(errno) => Some(Err(errno)),
            },
            _ => None,
        }
    }

    /// `struct tcp_info`.
    fn info(&self) -> Vec<u8> {
        let mtu = self.net.mtu();
        let segment = u32::from(mtu - HEADERS);
        let mut bytes = vec![0; size_of::<libc::tcp_info>()];
        bytes[std::mem::offset_of!(libc::tcp_info, tcpi_state)] = self.net.state(self.id);
        for (at, value) in [
            (std::mem::offset_of!(libc::tcp_info, tcpi_snd_mss), segment),
            (std::mem::offset_of!(libc::tcp_info, tcpi_rcv_mss), segment),
            (std::mem::offset_of!(libc::tcp_info, tcpi_advmss), segment),
            (std::mem::offset_of!(libc::tcp_info, tcpi_pmtu), mtu.into()),
        ] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }
}

/// Bytes of a buffer for a program's request.
fn buffer(given: c_int) -> usize {
    let (least, most) = BUFFER;
    usize::try_from(given).unwrap_or(most).clamp(least, most)
}

/// The time until a connection is given up after `repetitions` repeated SYNs.
fn syn_time(repetitions: u8) -> Duration {
    let wait = |n: u8| 1_u64.checked_shl(n.into()).unwrap_or(LAST_SYN) * FIRST_SYN;
    let waits = (0..=repetitions).map(|n| wait(n.min(7)).min(LAST_SYN));
    Duration::from_secs(waits.sum())
}

/// getsockopt(2).
///
/// # Errors
/// Those of getsockopt(2).
pub fn get_option(fd: RawFd, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
    let socket = socket(fd)?;
    let entry = socket.entry(level, name)?;
    if entry.fate == Fate::Refused {
        return Err(socket.refuses(entry.name));
    }
    if let Some(value) = socket.value(level, name) {
        return value;
    }
    let set = socket.setting(level, name);
    Ok(set.unwrap_or_else(|| entry.default()))
}

/// ioctl(2) with a request that reads or writes a number. `None`: the request is the kernel's, for
/// a socket with a descriptor of [`request`].
///
/// # Errors
/// Those of ioctl(2).
///
/// # Safety
/// As ioctl(2): the argument is what the request needs.
pub unsafe fn request(
    fd: RawFd,
    request: c_ulong,
    argument: *mut libc::c_void,
) -> Result<c_int, Errno> {
    let socket = socket(fd)?;
    let number: *mut c_int = argument.cast();
    match request {
        libc::FIONBIO | libc::FIONREAD | libc::TIOCOUTQ if argument.is_null() => Err(Errno::FAULT),
        libc::FIONBIO => {
            // SAFETY: the caller says that it leads to a number.
            let on = unsafe { number.read_unaligned() } != 0;
            socket.is_nonblocking.store(on, Ordering::Relaxed);
            Ok(0)
        }
        libc::FIONREAD | libc::TIOCOUTQ => {
            let (received, queued) = socket.net.queued(socket.id);
            let bytes = if request == libc::FIONREAD {
                received
            } else {
                queued
            };
            // SAFETY: as above.
            unsafe { number.write_unaligned(c_int::try_from(bytes).unwrap_or(c_int::MAX)) };
            Ok(0)
        }
        libc::FIOCLEX | libc::FIONCLEX => Ok(0),
        _ if OF_INTERFACES.contains(&request) => {
            let kernels = rustix::net::socket(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::DGRAM,
                None,
            )?;
            // SAFETY: the argument is the program's, as the request needs it.
            let result = unsafe {
                use std::os::fd::AsRawFd;
                libc::syscall(libc::SYS_ioctl, kernels.as_raw_fd(), request, argument)
            };
            match c_int::try_from(result) {
                Ok(result) if result >= 0 => Ok(result),
                _ => {
                    Err(Errno::from_io_error(&std::io::Error::last_os_error())
                        .unwrap_or(Errno::INVAL))
                }
            }
        }
        _ => Err(Errno::NOTTY),
    }
}
