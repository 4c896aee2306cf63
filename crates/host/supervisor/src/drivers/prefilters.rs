//! Prefilters: tables with programs. Each uplink has one. They are made at the start, while the
//! supervisor has the rights for it, with some for ports that are added later. A port keeps its
//! table while its interface is opened again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use interfaces::prefilter::{Prefilter, PrefilterError, PrefilterParts, connection_filter};
use ipc::names::PortName;

use super::driver::NoPrefilterError;
use crate::record::{FdIndex, IncomingFds, OutgoingFds, PassedPrefilters, RecordError};

/// Number of prefilters for ports that are added later. Each has a megabyte of the kernel's
/// memory and four descriptors, which an upgrade needs twice.
const SPARES: usize = 2;

/// See the module.
#[derive(Default)]
pub(super) struct Prefilters {
    /// The filter of connections, which all of them read and the switch writes; none if it could
    /// not be made.
    connections: Option<OwnedFd>,
    spares: Vec<Prefilter>,
    used: Vec<(PortName, Arc<Prefilter>)>,
    /// Reason why there are no more.
    reason: Option<String>,
}

impl Prefilters {
    /// Makes prefilters for a number of ports, and the spares.
    pub(super) fn prepare(ports: usize) -> Self {
        let mut prefilters = Self::default();
        if let Err(error) = prefilters.load(ports + SPARES) {
            tracing::info!("no prefilter: {error}");
            prefilters.reason = Some(error.to_string());
        }
        prefilters
    }

    fn load(&mut self, number: usize) -> Result<(), PrefilterError> {
        let connections = self.connections.insert(connection_filter()?);
        for _ in 0..number {
            self.spares.push(Prefilter::load(connections.as_fd())?);
        }
        Ok(())
    }

    /// Returns the filter of connections, for the switch.
    pub(super) fn connections(&self) -> Option<BorrowedFd<'_>> {
        self.connections.as_ref().map(AsFd::as_fd)
    }

    /// Returns the prefilter of a port, which gets one if it has none.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(super) fn assign(&mut self, port: &PortName) -> Result<Arc<Prefilter>, NoPrefilterError> {
        let at = match self.used.iter().position(|(name, _)| name == port) {
            Some(at) => at,
            None => {
                let prefilter = self.spare()?;
                self.used.push((port.clone(), Arc::new(prefilter)));
                self.used.len() - 1
            }
        };
        Ok(self.used[at].1.clone())
    }

    fn spare(&mut self) -> Result<Prefilter, NoPrefilterError> {
        if let Some(spare) = self.spares.pop() {
            return Ok(spare);
        }
        if let Some(reason) = &self.reason {
            return Err(NoPrefilterError::Load(reason.clone()));
        }
        let spares = || NoPrefilterError::Spares(SPARES);
        let connections = self.connections().ok_or_else(spares)?;
        Prefilter::load(connections).map_err(|error| match error {
            PrefilterError::Load(_) | PrefilterError::System(_) => spares(),
            other => NoPrefilterError::Load(other.to_string()),
        })
    }

    /// Returns whether a port has one with programs of another version.
    pub(super) fn has_others(&self) -> bool {
        self.used.iter().any(|(_, of)| !of.is_current())
    }

    /// Takes back the prefilters of ports that have none any more.
    pub(super) fn release(&mut self, mut of: impl FnMut(&PortName) -> bool) {
        for (port, prefilter) in self.used.extract_if(.., |(port, _)| of(port)) {
            let Some(prefilter) = Arc::into_inner(prefilter) else {
                continue;
            };
            match prefilter.clear() {
                Ok(()) => self.spares.push(prefilter),
                Err(error) => tracing::warn!(port = &*port, "prefilter lost: {error}"),
            }
        }
    }

    /// Adds the prefilters to the record for the next supervisor.
    pub(super) fn pass<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> PassedPrefilters {
        let connections = self.connections().map(|fd| outgoing.add(fd));
        let mut parts = |of: &'a Prefilter| of.parts(|fd| outgoing.add(fd));
        let spares = self.spares.iter().map(&mut parts).collect();
        let used = self.used.iter();
        PassedPrefilters {
            connections,
            spares,
            used: used.map(|(port, of)| (port.clone(), parts(of))).collect(),
            reason: self.reason.clone(),
        }
    }

    /// Takes the prefilters from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(super) fn take(from: PassedPrefilters, fds: &mut IncomingFds) -> Result<Self, RecordError> {
        let connections = from.connections.map(|fd| fds.take(fd)).transpose()?;
        let mut take = |parts: PrefilterParts<FdIndex>| Prefilter::of(parts, |fd| fds.take(fd));
        let spares = from.spares.into_iter().map(&mut take);
        let spares = spares.collect::<Result<_, _>>()?;
        let used = from.used.into_iter();
        let used = used.map(|(port, parts)| Ok((port, Arc::new(take(parts)?))));
        Ok(Self {
            connections,
            spares,
            used: used.collect::<Result<_, RecordError>>()?,
            reason: from.reason,
        })
    }
}
