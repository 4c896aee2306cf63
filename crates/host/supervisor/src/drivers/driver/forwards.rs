//! Listening sockets of the forwards of a user port, which its driver cannot open and which outlive
//! it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use interfaces::device::OpenError;
use ipc::driving::{Listen, RefusedForwards, UserForward};
use ipc::forwards::ListenRefusal;
use sys::descriptors::MAX_FDS;

use crate::shares::{self, Shares};

/// Time between two tries of a port that is taken: 5 seconds.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Most ranges of refused forwards that are reported.
const REFUSED_MAX: usize = 64;

/// The share of descriptors that a port may have of all, and the forwards that other ports have.
#[derive(Clone, Copy, Debug)]
pub(in crate::drivers) struct Share {
    pub(in crate::drivers) all: Shares,
    pub(in crate::drivers) others: u64,
}

impl Share {
    fn of_one(self) -> u64 {
        shares::of_one(self.all.forwards(), self.others)
    }
}

/// Reason why a forward has no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error(transparent)]
    Refused(#[from] ListenRefusal),
    #[error(transparent)]
    Socket(#[from] OpenError),
    /// The port has as many sockets as it may.
    #[error("{0}")]
    Share(String),
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::drivers) struct Forwards {
    desired: Vec<UserForward>,
    open: BTreeMap<Listen, OwnedFd>,
    refused: Vec<RefusedForwards>,
    /// When these are tried again.
    retry: Option<Instant>,
    /// The next one for the process.
    next: usize,
}

impl Forwards {
    /// Those of the supervisor before; the desired ones follow.
    pub(in crate::drivers) fn of(open: BTreeMap<Listen, OwnedFd>) -> Self {
        Self {
            open,
            ..Self::default()
        }
    }

    /// Opens and closes sockets as desired, up to the port's share of descriptors; those that are
    /// refused are tried again. Returns whether a process is to have others.
    pub(super) fn set(
        &mut self,
        desired: &[UserForward],
        share: Share,
        open: impl Fn(Listen) -> Result<OwnedFd, ForwardError>,
        now: Instant,
    ) -> bool {
        let is_new = self.desired != desired;
        if !is_new && self.retry.is_none_or(|retry| now < retry) {
            return false;
        }
        if is_new {
            self.desired = desired.to_vec();
        }
        let listens = |open: &Listen| desired.iter().any(|of| of.listen == *open);
        self.open.retain(|open, _| listens(open));
        let (before, most) = (self.open.len(), share.of_one());
        let mut refused = Vec::new();
        for listen in desired.iter().map(|of| of.listen) {
            if self.open.contains_key(&listen) {
                continue;
            }
            let opened = match (self.open.len() as u64) < most {
                true => open(listen),
                false => {
                    let text = share
                        .all
                        .too_many_forwards(desired.len() as u64, share.others);
                    Err(ForwardError::Share(text))
                }
            };
            match opened {
                Ok(socket) => drop(self.open.insert(listen, socket)),
                Err(error) => add(&mut refused, listen, error.to_string()),
            }
        }
        self.retry = (!refused.is_empty()).then(|| now + RETRY_INTERVAL);
        refused.truncate(REFUSED_MAX);
        if refused != self.refused {
            let is_new = |of: &&RefusedForwards| !self.refused.contains(of);
            let new = refused.iter().filter(is_new);
            new.for_each(|refused| tracing::warn!("no forward: {refused}"));
            self.refused = refused;
        }
        let has_changed = is_new || self.open.len() > before;
        if has_changed {
            self.next = 0;
        }
        has_changed
    }

    /// Returns those that are refused.
    pub(super) fn refused(&self) -> &[RefusedForwards] {
        &self.refused
    }

    /// All sockets with their addresses.
    pub(in crate::drivers) fn sockets(
        &self,
    ) -> impl ExactSizeIterator<Item = (Listen, BorrowedFd<'_>)> {
        let open = self.open.iter();
        open.map(|(listen, socket)| (*listen, socket.as_fd()))
    }

    /// A process asks for all of them.
    pub(super) fn begin(&mut self) {
        self.next = 0;
    }

    /// The next forwards for a process, with their sockets; none behind the last.
    pub(super) fn next(&mut self) -> (Vec<UserForward>, Vec<BorrowedFd<'_>>) {
        let (mut forwards, mut sockets) = (Vec::new(), Vec::new());
        while let Some(forward) = self.desired.get(self.next) {
            if sockets.len() == MAX_FDS {
                break;
            }
            self.next += 1;
            if let Some(socket) = self.open.get(&forward.listen) {
                forwards.push(forward.clone());
                sockets.push(socket.as_fd());
            }
        }
        (forwards, sockets)
    }
}

/// Adds a refused forward to those before it. Successive ports with one reason are one range.
fn add(all: &mut Vec<RefusedForwards>, listen: Listen, reason: String) {
    let port = listen.address.port();
    if let Some(last) = all.last_mut()
        && last.reason == reason
        && last.last.checked_add(1) == Some(port)
        && (last.first.protocol, last.first.address.ip()) == (listen.protocol, listen.address.ip())
    {
        last.last = port;
        return;
    }
    all.push(RefusedForwards {
        first: listen,
        last: port,
        reason,
    });
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::SocketAddr;

    use ipc::driving::ForwardProtocol;

    use super::*;

    /// Forwards of so many successive ports.
    fn range(protocol: ForwardProtocol, first: u16, count: u16) -> Vec<UserForward> {
        let forward = |port| UserForward {
            listen: Listen {
                protocol,
                address: SocketAddr::new([127, 0, 0, 1].into(), port),
            },
            to: "vm1".to_owned(),
            port,
        };
        (0..count).map(|n| forward(first + n)).collect()
    }

    fn socket(_: Listen) -> Result<OwnedFd, ForwardError> {
        Ok(sys::event::create().unwrap())
    }

    fn share(limit: u64, others: u64) -> Share {
        let all = Shares::of(limit);
        Share { all, others }
    }

    fn texts(forwards: &Forwards) -> Vec<String> {
        forwards.refused().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_range_beyond_the_share_is_refused_in_one_line() {
        let (mut forwards, now) = (Forwards::default(), Instant::now());
        let desired = range(ForwardProtocol::Tcp, 20_000, 1000);
        assert!(forwards.set(&desired, share(512, 0), socket, now));
        assert_eq!(forwards.open.len(), 32);
        let expected = "tcp 127.0.0.1:20032-20999: no descriptors left: the limit of 512 leaves \
                        this port 32 forwards, and 1000 need one of 8256 \
                        (LimitNOFILE= of the unit, or ulimit -Hn)";
        assert_eq!(texts(&forwards), [expected]);
        // It has the rest as soon as there is room: nothing else is opened anew.
        let later = now + RETRY_INTERVAL;
        let opened = Cell::new(0);
        let open = |listen| {
            opened.set(opened.get() + 1);
            socket(listen)
        };
        assert!(!forwards.set(&desired, share(512, 0), open, later));
        let later = later + RETRY_INTERVAL;
        assert!(forwards.set(&desired, share(8256, 0), open, later));
        assert_eq!((opened.get(), forwards.open.len()), (968, 1000));
        assert!(texts(&forwards).is_empty());
        // Forwards of another port that come later close none of these.
        let one_less = &desired[..999];
        assert!(forwards.set(one_less, share(8256, 1000), open, later));
        assert_eq!((forwards.open.len(), opened.get()), (999, 968));
    }

    #[test]
    fn refusals_of_successive_ports_are_one() {
        let (mut forwards, now) = (Forwards::default(), Instant::now());
        let mut desired = range(ForwardProtocol::Tcp, 65_530, 6);
        desired.extend(range(ForwardProtocol::Udp, 1000, 3));
        desired.extend(range(ForwardProtocol::Udp, 1004, 1));
        let taken = |listen: Listen| match listen.address.port() {
            65_532 => socket(listen),
            1001 => Err(ForwardError::Share("in use".to_owned())),
            _ => Err(ForwardError::Share("no right".to_owned())),
        };
        forwards.set(&desired, share(4096, 0), taken, now);
        let expected = [
            "tcp 127.0.0.1:65530-65531: no right",
            "tcp 127.0.0.1:65533-65535: no right",
            "udp 127.0.0.1:1000: no right",
            "udp 127.0.0.1:1001: in use",
            "udp 127.0.0.1:1002: no right",
            "udp 127.0.0.1:1004: no right",
        ];
        assert_eq!(texts(&forwards), expected);
        let refused = &forwards.refused()[1];
        let has = |at: usize| refused.has(desired[at].listen);
        assert!(has(3) && has(5) && !has(2) && !has(6));
    }

    #[test]
    fn reports_of_refusals_are_bounded() {
        let (mut forwards, now) = (Forwards::default(), Instant::now());
        let desired = range(ForwardProtocol::Tcp, 2000, 1000);
        let each = |listen: Listen| Err(ForwardError::Share(listen.to_string()));
        forwards.set(&desired, share(1 << 20, 0), each, now);
        assert_eq!(forwards.refused().len(), REFUSED_MAX);
        assert!(
            !forwards.set(&desired, share(1 << 20, 0), each, now),
            "later"
        );
    }
}
