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

/// Returns the place where frames end with this choice, if the interface moves them this way.
const fn place_of(of: BackEnd, choice: PrefilterChoice) -> Option<PrefilterBackEnd> {
    use PrefilterBackEnd::{Socket, Xdp};
    match (of, choice) {
        (BackEnd::Packet, PrefilterChoice::Auto | PrefilterChoice::Only(Socket)) => Some(Socket),
        (BackEnd::Packet, PrefilterChoice::Only(Xdp)) => Some(Xdp),
        (BackEnd::Xdp { .. }, PrefilterChoice::Auto | PrefilterChoice::Only(Xdp)) => Some(Xdp),
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
    choice: PrefilterChoice,
    /// The place where frames end, or the reason why they do not.
    attached: Option<Result<PrefilterBackEnd, NoPrefilterError>>,
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
        let place = place_of(of, choice);
        place
            .map(drop)
            .ok_or(NoPrefilterError::BackEnd(of.as_str()))
    }

    /// Sets the prefilter with its place, or the reason why there is none.
    pub(in crate::drivers) fn set_prefilter(
        &mut self,
        mut device: Option<&mut Device>,
        prefilter: Result<Arc<Prefilter>, NoPrefilterError>,
        choice: PrefilterChoice,
    ) {
        let is_same = match (&prefilter, &self.prefilter) {
            (Ok(new), Some(Ok(old))) => Arc::ptr_eq(new, old),
            _ => false,
        };
        let place = |choice| place_of(device.as_ref()?.back_end(), choice);
        let is_moved = place(choice) != place(self.choice);
        if is_same && !is_moved && matches!(self.attached, Some(Ok(_))) {
            return;
        }
        if prefilter.is_err() || is_moved {
            self.drop_prefilter(device.as_deref_mut());
        }
        (self.prefilter, self.choice) = (Some(prefilter), choice);
        self.attach(device);
    }

    fn attach(&mut self, device: Option<&mut Device>) {
        let Some(Ok(prefilter)) = &self.prefilter else {
            self.attached = None;
            return;
        };
        let device = device.ok_or(NoPrefilterError::Closed);
        self.attached = Some(device.and_then(|device| {
            let of = device.back_end();
            let place = place_of(of, self.choice).ok_or(NoPrefilterError::BackEnd(of.as_str()))?;
            let set = device.set_prefilter(prefilter, place);
            set.map_err(|error| NoPrefilterError::System(error.to_string()))?;
            Ok(place)
        }));
    }

    /// Takes the prefilter off the interface.
    pub(in crate::drivers) fn drop_prefilter(&mut self, device: Option<&mut Device>) {
        self.prefilter = None;
        let attached = self.attached.take();
        if let (Some(Ok(_)), Some(device)) = (attached, device)
            && let Err(error) = device.drop_prefilter()
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
        let attached = match (prefilter, &self.attached) {
            (Err(error), _) | (_, Some(Err(error))) => Err(error),
            (Ok(_), Some(Ok(_))) if device.is_some_and(Device::awaits_prefilter) => {
                Err(&NoPrefilterError::Later)
            }
            (Ok(_), Some(Ok(place))) if device.is_some() => Ok(*place),
            (Ok(_), _) => Err(&NoPrefilterError::Closed),
        };
        Some(attached)
    }
}
