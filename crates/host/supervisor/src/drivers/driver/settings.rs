//! Settings that an interface gets whenever it is opened: the bytes that may wait in it, and the
//! prefilter.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use interfaces::device::Device;
use interfaces::prefilter::Prefilter;
use ipc::driving::{BackEnd, PrefilterBackEnd, PrefilterChoice};

/// Reason why no frames of an interface end before the switch.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(in crate::drivers) enum NoPrefilterError {
    /// It is not desired.
    #[error("it is switched off")]
    Off,
    /// The kernel has loaded no program.
    #[error("{0}")]
    Load(String),
    /// The programs of the start are in use.
    #[error("the {0} for ports that are added later are in use: restart Lasthop")]
    Spares(usize),
    /// The driver moves frames in a way without a prefilter.
    #[error("not with the driver {0}")]
    BackEnd(&'static str),
    /// The interface is not open.
    #[error("the interface is not open")]
    Closed,
    /// The process has `AF_XDP` sockets that the program does not know.
    #[error("from the next driver process on")]
    Later,
    /// The system refuses.
    #[error("{0}")]
    System(String),
}

/// Returns the place where frames can end, with a way of moving them.
const fn prefilter_of(of: BackEnd) -> Option<PrefilterBackEnd> {
    match of {
        BackEnd::Packet => Some(PrefilterBackEnd::Socket),
        BackEnd::Xdp { .. } => Some(PrefilterBackEnd::Xdp),
        _ => None,
    }
}

/// See the module.
#[derive(Default)]
pub(in crate::drivers) struct Settings {
    /// Bytes that may wait in the interface, where they are bounded.
    room: Option<u64>,
    /// `None`: not desired.
    prefilter: Option<Result<Arc<Prefilter>, NoPrefilterError>>,
    /// The interface has it, or the reason why not.
    attached: Option<Result<(), NoPrefilterError>>,
}

impl Settings {
    /// Applies all to an interface that was opened.
    pub(super) fn apply(&mut self, device: &mut Device) {
        if self.room.is_some() {
            self.apply_room(device);
        }
        self.attach(Some(device));
    }

    /// Bounds the bytes that may wait in the interface, also after it is opened again.
    pub(in crate::drivers) fn set_room(&mut self, device: Option<&mut Device>, room: Option<u64>) {
        if self.room != room {
            self.room = room;
            if let Some(device) = device {
                self.apply_room(device);
            }
        }
    }

    fn apply_room(&self, device: &Device) {
        if let Err(error) = device.set_room(self.room) {
            tracing::warn!("{error}");
        }
    }

    /// Returns whether an interface of its kind can have a prefilter.
    ///
    /// # Errors
    /// Why not.
    pub(in crate::drivers) fn fit_prefilter(
        device: Option<&Device>,
        choice: PrefilterChoice,
    ) -> Result<(), NoPrefilterError> {
        let Some(of) = device.map(Device::back_end) else {
            return Ok(());
        };
        let possible = prefilter_of(of).ok_or(NoPrefilterError::BackEnd(of.as_str()))?;
        match choice {
            PrefilterChoice::Only(only) if only != possible => {
                Err(NoPrefilterError::BackEnd(of.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// Sets the prefilter, or the reason why there is none.
    pub(in crate::drivers) fn set_prefilter(
        &mut self,
        mut device: Option<&mut Device>,
        prefilter: Result<Arc<Prefilter>, NoPrefilterError>,
    ) {
        let is_same = match (&prefilter, &self.prefilter) {
            (Ok(new), Some(Ok(old))) => Arc::ptr_eq(new, old),
            _ => false,
        };
        if !is_same || self.attached != Some(Ok(())) {
            if prefilter.is_err() {
                self.drop_prefilter(device.as_deref_mut());
            }
            self.prefilter = Some(prefilter);
            self.attach(device);
        }
    }

    fn attach(&mut self, device: Option<&mut Device>) {
        let Some(Ok(prefilter)) = &self.prefilter else {
            self.attached = None;
            return;
        };
        let device = device.ok_or(NoPrefilterError::Closed);
        self.attached = Some(device.and_then(|device| {
            let set = device.set_prefilter(Some(prefilter));
            set.map_err(|error| NoPrefilterError::System(error.to_string()))
        }));
    }

    /// Takes the prefilter off the interface.
    pub(in crate::drivers) fn drop_prefilter(&mut self, device: Option<&mut Device>) {
        self.prefilter = None;
        let attached = self.attached.take();
        if let (Some(Ok(())), Some(device)) = (attached, device)
            && let Err(error) = device.set_prefilter(None)
        {
            tracing::warn!("{error}");
        }
    }

    /// Returns the table of the prefilter, for its writer.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(in crate::drivers) fn table(&self) -> Result<OwnedFd, NoPrefilterError> {
        let prefilter = self.prefilter.as_ref().ok_or(NoPrefilterError::Off)?;
        let prefilter = prefilter.as_ref().map_err(Clone::clone)?;
        let copy = prefilter.table().try_clone_to_owned();
        copy.map_err(|error| NoPrefilterError::System(error.to_string()))
    }

    /// Returns where frames end, or the reason why they do not; of a port without a desired
    /// prefilter `None`.
    pub(super) fn prefilter(
        &self,
        device: Option<&Device>,
    ) -> Option<Result<PrefilterBackEnd, &NoPrefilterError>> {
        let prefilter = self.prefilter.as_ref()?;
        let back_end = device.and_then(|device| prefilter_of(device.back_end()));
        let attached = match (prefilter, &self.attached) {
            (Err(error), _) | (_, Some(Err(error))) => Err(error),
            (Ok(_), Some(Ok(()))) if device.is_some_and(Device::awaits_prefilter) => {
                Err(&NoPrefilterError::Later)
            }
            (Ok(_), Some(Ok(()))) => back_end.ok_or(&NoPrefilterError::Closed),
            (Ok(_), None) => Err(&NoPrefilterError::Closed),
        };
        Some(attached)
    }
}
