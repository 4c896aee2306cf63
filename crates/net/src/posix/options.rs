//! Options and requests (socket(7), tcp(7), ip(7), ipv6(7)).

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int, c_ulong};
use rustix::io::Errno;

use super::{Setting, Socket, lock, socket};
use crate::SAY;
use crate::stack::{Kind, Options};

/// Settings that are kept of one socket at most.
const MOST_SETTINGS: usize = 64;
/// Time between probes without `TCP_KEEPIDLE` (tcp(7)).
const KEEP_IDLE: Duration = Duration::from_secs(7200);
/// Bytes of headers of IPv4 and TCP.
const HEADERS: u16 = 40;
/// Requests about interfaces (netdevice(7)), which are the kernel's.
const OF_INTERFACES: std::ops::RangeInclusive<c_ulong> = 0x8910..=0x89ff;

/// Options that are taken and change nothing here: hints, and behaviour that is so anyway.
const HINTS: &[(c_int, c_int)] = &[
    (SOL_SOCKET, libc::SO_RCVBUF),
    (SOL_SOCKET, libc::SO_SNDBUF),
    (SOL_SOCKET, libc::SO_PRIORITY),
    (SOL_SOCKET, libc::SO_OOBINLINE),
    (SOL_SOCKET, libc::SO_DONTROUTE),
    (SOL_SOCKET, libc::SO_INCOMING_CPU),
    (SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (SOL_SOCKET, libc::SO_BUSY_POLL),
    (IPPROTO_TCP, libc::TCP_CORK),
    (IPPROTO_TCP, libc::TCP_QUICKACK),
    (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (IPPROTO_TCP, libc::TCP_KEEPCNT),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (IPPROTO_TCP, libc::TCP_MAXSEG),
    (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (IPPROTO_TCP, libc::TCP_SYNCNT),
    (IPPROTO_TCP, libc::TCP_FASTOPEN),
    (IPPROTO_TCP, libc::TCP_CONGESTION),
    (IPPROTO_IP, libc::IP_TOS),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (IPPROTO_IP, libc::IP_RECVERR),
    (IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (IPPROTO_IPV6, libc::IPV6_TCLASS),
    (IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (IPPROTO_IPV6, libc::IPV6_RECVERR),
];

fn number(value: &[u8]) -> Result<c_int, Errno> {
    let bytes = value.first_chunk().ok_or(Errno::INVAL)?;
    Ok(c_int::from_ne_bytes(*bytes))
}

/// Reads a `struct timeval`; microseconds.
fn micros(value: &[u8]) -> Result<u64, Errno> {
    let (seconds, rest) = value.split_first_chunk::<8>().ok_or(Errno::INVAL)?;
    let part = rest.first_chunk::<8>().ok_or(Errno::INVAL)?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).map_err(|_| Errno::DOM)?;
    let part = u64::try_from(i64::from_ne_bytes(*part)).map_err(|_| Errno::DOM)?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(part))
}

fn seconds(value: &[u8]) -> Result<Duration, Errno> {
    let seconds = u64::try_from(number(value)?)
        .ok()
        .filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs).ok_or(Errno::INVAL)
}

/// setsockopt(2).
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_option(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
    let socket = socket(fd)?;
    let is_known = socket.apply(level, name, value)? || HINTS.contains(&(level, name));
    if !is_known {
        SAY.once(&format!("option {name} of level {level} is not there"));
        return Err(Errno::NOPROTOOPT);
    }
    let mut settings = lock(&socket.settings);
    settings.retain(|setting| (setting.level, setting.name) != (level, name));
    if settings.len() < MOST_SETTINGS {
        settings.push(Setting {
            level,
            name,
            value: value.to_vec(),
        });
    }
    Ok(())
}

impl Socket {
    fn change(&self, change: impl FnOnce(&mut Options)) -> Result<bool, Errno> {
        self.net.change(self.id, change).map(|()| true)
    }

    /// Applies an option. `false`: it is none that changes something.
    fn apply(&self, level: c_int, name: c_int, value: &[u8]) -> Result<bool, Errno> {
        match (level, name) {
            (SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT) => {
                let on = number(value)? != 0;
                self.change(|options| options.reuse = on)
            }
            (SOL_SOCKET, libc::SO_BROADCAST) => {
                let on = number(value)? != 0;
                self.change(|options| options.broadcast = on)
            }
            (SOL_SOCKET, libc::SO_KEEPALIVE) => {
                let on = number(value)? != 0;
                let idle = self.setting(IPPROTO_TCP, libc::TCP_KEEPIDLE);
                let idle = idle
                    .and_then(|idle| seconds(&idle).ok())
                    .unwrap_or(KEEP_IDLE);
                self.change(|options| options.keep_alive = on.then_some(idle))
            }
            (SOL_SOCKET, libc::SO_LINGER) => {
                let is_on = number(value)? != 0;
                let time = number(value.get(4..).unwrap_or_default())?;
                self.change(|options| options.abort = is_on && time == 0)
            }
            (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                let sends = usize::from(name == libc::SO_SNDTIMEO);
                self.limits[sends].store(micros(value)?, Ordering::Relaxed);
                Ok(true)
            }
            (IPPROTO_TCP, _) if self.kind == Kind::Datagram => Err(Errno::NOPROTOOPT),
            (IPPROTO_TCP, libc::TCP_NODELAY) => {
                let on = number(value)? != 0;
                self.change(|options| options.no_delay = on)
            }
            (IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                let idle = seconds(value)?;
                self.change(|options| {
                    options.keep_alive = options.keep_alive.map(|_| idle);
                })
            }
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                let millis = u64::try_from(number(value)?).map_err(|_| Errno::INVAL)?;
                let limit = (millis > 0).then(|| Duration::from_millis(millis));
                self.change(|options| options.user_timeout = limit)
            }
            (IPPROTO_IP, libc::IP_TTL) | (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                let limit = number(value)?;
                let limit = if limit == -1 { 0 } else { limit };
                let limit = u8::try_from(limit).map_err(|_| Errno::INVAL)?;
                self.change(|options| options.hop_limit = limit)
            }
            _ => Ok(false),
        }
    }

    /// An option as the program has set it.
    fn setting(&self, level: c_int, name: c_int) -> Option<Vec<u8>> {
        let settings = lock(&self.settings);
        let mut found = settings
            .iter()
            .filter(|setting| (setting.level, setting.name) == (level, name));
        found.next().map(|setting| setting.value.clone())
    }

    /// The value of an option that depends on the socket's state, or has a default of its own.
    fn value(&self, level: c_int, name: c_int) -> Option<Vec<u8>> {
        let number = |value: c_int| Some(value.to_ne_bytes().to_vec());
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
            (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {
                number(c_int::try_from(self.net.buffer()).unwrap_or(c_int::MAX))
            }
            (SOL_SOCKET, libc::SO_LINGER) => Some(vec![0; 8]),
            (SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => Some(vec![0; 16]),
            (IPPROTO_TCP, libc::TCP_MAXSEG) => number((self.net.mtu() - HEADERS).into()),
            (IPPROTO_TCP, libc::TCP_CONGESTION) => Some(b"none\0".to_vec()),
            (IPPROTO_TCP, libc::TCP_INFO) => Some(vec![0; size_of::<libc::tcp_info>()]),
            (IPPROTO_IP, libc::IP_TTL) | (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => number(64),
            (IPPROTO_IP, libc::IP_MTU) => number(self.net.mtu().into()),
            _ => None,
        }
    }
}

/// getsockopt(2).
///
/// # Errors
/// Those of getsockopt(2).
pub fn get_option(fd: RawFd, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
    let socket = socket(fd)?;
    let is_state = matches!(
        (level, name),
        (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF)
    );
    if !is_state && let Some(value) = socket.setting(level, name) {
        return Ok(value);
    }
    if let Some(value) = socket.value(level, name) {
        return Ok(value);
    }
    // Whatever can be set is off before.
    let can_be_set = HINTS.contains(&(level, name))
        || matches!(
            (level, name),
            (
                SOL_SOCKET,
                libc::SO_REUSEADDR | libc::SO_REUSEPORT | libc::SO_BROADCAST | libc::SO_KEEPALIVE
            ) | (
                IPPROTO_TCP,
                libc::TCP_NODELAY | libc::TCP_USER_TIMEOUT | libc::TCP_KEEPIDLE
            )
        );
    if can_be_set {
        return Ok(vec![0; size_of::<c_int>()]);
    }
    SAY.once(&format!("option {name} of level {level} is not there"));
    Err(Errno::NOPROTOOPT)
}

/// ioctl(2) with a request that reads or writes a number. `None`: the request is the kernel's, for
/// a socket of which [`request`] has made the descriptor.
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
