//! Listening sockets of the forwards of a user port, which its driver cannot open and which outlive
//! it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use channel::driving::{Listen, UserForward};
use channel::forwards::{PermittedListen, Refused};
use driver::device::Device;
use sys::descriptors::MAX_FDS;

/// Time between two tries of a port that is taken: 5 seconds.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(in crate::drivers) struct Forwards {
    desired: Vec<UserForward>,
    open: BTreeMap<Listen, OwnedFd>,
    /// Refusals.
    refused: Vec<String>,
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

    /// Opens and closes sockets as desired and permitted; those that are refused are tried again.
    /// Returns whether a process is to have others.
    pub(super) fn set(
        &mut self,
        desired: &[UserForward],
        device: &Device,
        permit: impl Fn(Listen) -> Result<PermittedListen, Refused>,
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
        let (before, mut refused) = (self.open.len(), Vec::new());
        for listen in desired.iter().map(|of| of.listen) {
            if self.open.contains_key(&listen) {
                continue;
            }
            let opened = match permit(listen) {
                Ok(permitted) => device.listen(permitted).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match opened {
                Ok(socket) => drop(self.open.insert(listen, socket)),
                Err(error) => refused.push(error),
            }
        }
        if refused != self.refused {
            refused
                .iter()
                .for_each(|error| tracing::warn!("no forward: {error}"));
            self.refused = refused;
        }
        self.retry = (!self.refused.is_empty()).then(|| now + RETRY_INTERVAL);
        let has_changed = is_new || self.open.len() > before;
        if has_changed {
            self.next = 0;
        }
        has_changed
    }

    /// Returns the refusals in words.
    pub(super) fn refused(&self) -> Option<String> {
        (!self.refused.is_empty()).then(|| self.refused.join("; "))
    }

    /// All sockets with their addresses.
    pub(in crate::drivers) fn sockets(&self) -> impl Iterator<Item = (Listen, BorrowedFd<'_>)> {
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
