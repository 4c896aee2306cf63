//! Opening the interface of a port: the part that needs rights, done by the supervisor.
//!
//! The supervisor keeps what it opened and gives a copy to each driver process. So an own
//! interface, its addresses and the connections of the host over it outlive a driver that dies, and
//! a driver needs no right at all.

mod address;
mod claim;
mod ethtool;
mod interface;
mod namespace;
mod offloads;
mod packet;
mod tap;
mod user;
mod wire_program;
mod xdp;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ipc::driving::{BackEnd, Choice, DeviceSpec, PACKET_BACKLOG, PrefilterBackEnd, XdpStart};
use ipc::forwards::PermittedListen;
use ipc::names::Namespace;
use serde::{Deserialize, Serialize};
use sys::limit;

use crate::prefilter::{self, Prefilter};
use crate::vhost;
use claim::Claim;
use interface::Control;
pub use namespace::enter;
use namespace::{in_desired, in_namespace};
pub use offloads::Offload;
use offloads::Offloads;
use wire_program::WireProgram;
pub use wire_program::WireProgramParts;
pub use xdp::XdpParts;

/// An open interface.
#[derive(Debug)]
pub struct Device {
    interface: String,
    back_end: BackEnd,
    uso: bool,
    queues: Vec<OwnedFd>,
    /// The process moves the frames of a TAP device by vhost devices.
    by_vhost: bool,
    /// In the interface's network namespace.
    control: Control,
    xdp: Option<xdp::Xdp>,
    /// With packet sockets: the XDP program of a prefilter.
    wire_program: Option<WireProgram>,
    /// It is not known what can be had of the interface, because it is switched off.
    provisional: bool,
    /// None where it is not known whether others have the interface.
    claim: Option<Claim>,
    /// None where no super-frames cross, or the interface does not report its offloads.
    offloads: Option<Offloads>,
}

/// Descriptors and parameters for a driver process; they are not needed here any more.
#[derive(Debug)]
pub struct Handover {
    /// How frames are moved.
    pub back_end: BackEnd,
    /// The system knows UDP segmentation offload at this interface.
    pub uso: bool,
    /// One descriptor for each queue pair.
    pub queues: Vec<OwnedFd>,
    /// The vhost device of each queue pair, in their order; with [`BackEnd::VhostNet`] only.
    pub vhost: Vec<OwnedFd>,
    /// Umem and parameters of `AF_XDP` sockets.
    pub xdp: Option<(OwnedFd, XdpStart)>,
}

/// Parts of an open interface, for a supervisor that replaces another.
///
/// The order of the fields, and of those of [`XdpParts`], is part of the supervisor's record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parts<Fd> {
    /// Its name.
    pub interface: String,
    /// How frames are moved.
    pub back_end: BackEnd,
    /// The system knows UDP segmentation offload at it.
    pub uso: bool,
    /// It is not known what can be had of the interface, because it is switched off.
    pub provisional: bool,
    /// One descriptor for each queue pair.
    pub queues: Vec<Fd>,
    /// A socket in the interface's network namespace.
    pub control: Fd,
    /// Further parts of an interface with `AF_XDP` sockets.
    pub xdp: Option<XdpParts<Fd>>,
    /// The XDP program of a prefilter at an interface with packet sockets.
    pub wire_program: Option<WireProgramParts<Fd>>,
    /// The process moves the frames of a TAP device by vhost devices.
    pub by_vhost: bool,
}

/// MTU of Ethernet interfaces by default.
const ETHERNET_MTU: u16 = 1500;

/// Why an interface cannot be had, in words for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct OpenError {
    text: String,
    missing: bool,
}

impl OpenError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            missing: false,
        }
    }

    /// There is no such interface or namespace, or another process has the interface: it may come.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.missing
    }
}

/// Adds the failed operation to an error of the system.
pub(crate) fn context<T>(
    result: Result<T, impl Into<io::Error>>,
    what: impl FnOnce() -> String,
) -> Result<T, OpenError> {
    result.map_err(|error| {
        let error: io::Error = error.into();
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                " (this needs root, or CAP_NET_ADMIN and CAP_NET_RAW)"
            }
            _ => "",
        };
        let no_such = [libc::ENODEV, libc::ENXIO, libc::ENOENT];
        OpenError {
            missing: error.raw_os_error().is_some_and(|e| no_such.contains(&e)),
            text: format!("{}: {}{hint}", what(), limit::in_words(&error)),
        }
    })
}

impl Device {
    /// An interface that was opened now.
    fn new(
        interface: &str,
        control: Control,
        back_end: BackEnd,
        uso: bool,
        queues: Vec<OwnedFd>,
    ) -> Self {
        Self {
            interface: interface.to_owned(),
            back_end,
            uso,
            queues,
            by_vhost: false,
            control,
            xdp: None,
            wire_program: None,
            provisional: false,
            claim: None,
            offloads: None,
        }
    }

    /// Opens the interface; makes it first if it is the port's own.
    ///
    /// # Errors
    /// There is no such interface, it is of the wrong kind, or the rights are missing.
    pub fn open(spec: &DeviceSpec) -> Result<Self, OpenError> {
        let device = in_desired(spec.netns.as_ref(), || Self::open_here(spec));
        device.map(|device| device.claimed().observed())
    }

    /// Opens the network namespace of a user port's sockets, which has no interface.
    ///
    /// # Errors
    /// There is no such namespace, or the rights are missing.
    pub fn open_sockets(netns: Option<&Namespace>) -> Result<Self, OpenError> {
        in_desired(netns, || {
            let control = context(Control::new(), || "a control socket".to_owned())?;
            user::open(control)
        })
    }

    /// With a claim to its interface.
    fn claimed(mut self) -> Self {
        let claim = Claim::of(&self.interface, &self.control);
        let unknown = |error: &OpenError| tracing::debug!("{error}");
        self.claim = claim.inspect_err(unknown).ok();
        self
    }

    /// With the offloads that its interface has now.
    fn observed(mut self) -> Self {
        if self.xdp.is_none() {
            let offloads = Offloads::of(&self.interface, &self.control);
            let unknown = |error: &io::Error| tracing::debug!("offloads not known: {error}");
            self.offloads = offloads.inspect_err(unknown).ok();
        }
        self
    }

    fn open_here(spec: &DeviceSpec) -> Result<Self, OpenError> {
        let control = context(Control::new(), || "a control socket".to_owned())?;
        match choose(spec, &control)? {
            Way::Tap => tap::open(spec, control),
            Way::VhostNet => {
                vhost_devices(1)?;
                tap::open(spec, control)
            }
            Way::Packet => packet::open(spec, control),
            Way::Xdp { copy } => Self::open_xdp(spec, control, copy),
        }
    }

    /// `AF_XDP`, or what is there instead.
    fn open_xdp(spec: &DeviceSpec, control: Control, copy: bool) -> Result<Self, OpenError> {
        let interface = &*spec.interface;
        // A missing interface is reported when the packet socket is opened. One that is down is
        // bound to no socket of this kind, so its features are checked when it is up.
        if !control.is_up(interface).unwrap_or(false) {
            let mut device = packet::open(spec, control)?;
            device.provisional = true;
            return Ok(device);
        }
        match xdp::open(spec, copy) {
            Ok(device) => Ok(device),
            Err(why) => {
                if copy {
                    tracing::warn!(interface, "no driver \"xdp\": {why}; \"packet\" is used");
                } else {
                    tracing::info!(interface, "no zero-copy: {why}; \"packet\" is used");
                }
                packet::open(spec, control)
            }
        }
    }

    /// Returns whether a driver can work with it now.
    ///
    /// # Errors
    /// Why not; [`NotReadyError::Gone`] when it must be opened anew.
    pub fn check(&self) -> Result<(), NotReadyError> {
        let ready = match (&self.xdp, self.queues.first()) {
            (Some(xdp), _) => xdp.check(&self.interface, &self.control),
            (None, None) => Err(NotReadyError::Gone),
            (None, Some(_)) if self.back_end == BackEnd::User => Ok(()),
            (None, Some(queue)) if self.back_end == BackEnd::Tap => tap::check(queue.as_fd()),
            (None, Some(_)) => packet::check(&self.queues, &self.interface),
        };
        match ready {
            Ok(()) if self.provisional => Err(NotReadyError::Gone),
            other => other,
        }
    }

    /// Returns whether a process works with outdated parameters: `AF_XDP` sockets take frames of
    /// any length, so their process must know the MTU, and cannot read it.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        let xdp = self.xdp.as_ref();
        xdp.is_some_and(|xdp| xdp.has_changed(&self.interface, &self.control))
    }

    /// Opens the socket of a forward, in the namespace of a user port's sockets.
    ///
    /// # Errors
    /// The system's refusal; the device is that of another port.
    pub fn listen(&self, at: PermittedListen) -> Result<OwnedFd, OpenError> {
        let namespace = self.queues.first();
        let namespace = namespace.filter(|_| self.back_end == BackEnd::User);
        match namespace {
            Some(namespace) => in_namespace(namespace.as_fd(), || user::listen(at.get())),
            None => Err(OpenError::new("no user port")),
        }
    }

    /// Returns the identity of the namespace of a user port's sockets; of others `None`.
    #[must_use]
    pub fn namespace(&self) -> Option<(u64, u64)> {
        let namespace = self.queues.first();
        let namespace = namespace.filter(|_| self.back_end == BackEnd::User)?;
        let found = rustix::fs::fstat(namespace).ok()?;
        Some((found.st_dev, found.st_ino))
    }

    /// Gives the interface another MTU, or the usual one.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn set_mtu(&self, mtu: Option<u16>) -> Result<(), OpenError> {
        let mtu = mtu.unwrap_or(ETHERNET_MTU);
        let set = self.control.set_mtu(&self.interface, mtu);
        context(set, || format!("the MTU of {}", self.interface))
    }

    /// Gives the interface another MAC address.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), OpenError> {
        let set = self.control.set_mac(&self.interface, mac);
        context(set, || format!("the MAC address of {}", self.interface))
    }

    /// Bounds the bytes that may wait in the send buffers of the interface, or no longer. `AF_XDP`
    /// sockets have none: buffers of theirs come back when their frames have left.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn set_room(&self, bytes: Option<u64>) -> Result<(), OpenError> {
        let set_room = |queue| match self.back_end {
            BackEnd::Tap => tap::set_room(queue, bytes),
            BackEnd::Packet => packet::set_room(queue, bytes.unwrap_or(PACKET_BACKLOG) as usize),
            BackEnd::Xdp { .. } | BackEnd::VhostNet | BackEnd::User => Ok(()),
        };
        let set = self.queues.iter().try_for_each(set_room);
        context(set, || format!("the send buffer of {}", self.interface))
    }

    /// Has the interface end frames that meet an entry of a prefilter, in this place. With `AF_XDP`
    /// sockets in use, the next process has it.
    ///
    /// # Errors
    /// The system's refusal; interfaces of other kinds.
    pub fn set_prefilter(
        &mut self,
        prefilter: &Prefilter,
        at: PrefilterBackEnd,
    ) -> Result<(), OpenError> {
        let program = || {
            let program = prefilter.xdp();
            program.ok_or_else(|| OpenError::new("the kernel has loaded no XDP program"))
        };
        match (at, &mut self.xdp) {
            (PrefilterBackEnd::Xdp, Some(xdp)) => xdp.set_filter(Some(program()?)),
            (PrefilterBackEnd::Xdp, None) if self.back_end == BackEnd::Packet => {
                if self.provisional {
                    return Err(NotReadyError::Down(self.interface.clone()).into());
                }
                if self.wire_program.is_none() {
                    let attached = WireProgram::attach(&self.interface, &self.control, program()?);
                    self.wire_program = Some(attached?);
                }
                Ok(())
            }
            (PrefilterBackEnd::Socket, None) if self.back_end == BackEnd::Packet => {
                let set = |queue| prefilter.attach(queue);
                let set = self.queues.iter().try_for_each(set);
                context(set, || format!("the prefilter of {}", self.interface))
            }
            _ => Err(OpenError::new(format!(
                "not with {}",
                self.back_end.as_str()
            ))),
        }
    }

    /// Has all frames pass again.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn drop_prefilter(&mut self) -> Result<(), OpenError> {
        self.wire_program = None;
        if let Some(xdp) = &mut self.xdp {
            return xdp.set_filter(None);
        }
        if self.back_end != BackEnd::Packet {
            return Ok(());
        }
        let dropped = self.queues.iter().try_for_each(prefilter::detach);
        context(dropped, || format!("the prefilter of {}", self.interface))
    }

    /// Returns whether the next process has a prefilter that is desired, and the present one not.
    #[must_use]
    pub fn awaits_prefilter(&self) -> bool {
        self.xdp.as_ref().is_some_and(xdp::Xdp::awaits_filter)
    }

    /// Discards the frames that wait for a driver after it has ended, before the interface is
    /// closed. Returns their number, if they waited in packet sockets: the other back ends do not
    /// have them here.
    #[must_use]
    pub fn discard(&self) -> Option<u64> {
        if self.back_end != BackEnd::Packet {
            return None;
        }
        let frames = self.queues.iter().map(packet::discard);
        let unknown = |error: &io::Error| tracing::debug!("frames that waited: {error}");
        frames.sum::<io::Result<u64>>().inspect_err(unknown).ok()
    }

    /// Closes an own interface that another process still has open: its name is free when this
    /// returns.
    pub fn set_aside(self) {
        let interface = &self.interface;
        if let Err(error) = tap::set_aside(interface, &self.control) {
            tracing::warn!(interface, "cannot be set aside: {error}");
        }
    }

    /// Returns whether system calls on its queues are all that moves frames, if `choice` is the
    /// operator's: so the switch can serve it.
    #[must_use]
    pub fn fits_switch(&self, choice: Choice) -> bool {
        let is_simple = matches!(self.back_end, BackEnd::Tap | BackEnd::Packet);
        is_simple && choice != Choice::VhostNet
    }

    /// The interface's MAC address; none while it is gone.
    #[must_use]
    pub fn mac(&self) -> Option<[u8; 6]> {
        self.control.mac(&self.interface).ok()
    }

    /// The speed of the interface's link in bits a second; none where it is not known, and for TAP
    /// devices: their speed is no property of any wire.
    #[must_use]
    pub fn speed(&self) -> Option<u64> {
        let megabits = match self.back_end {
            BackEnd::Tap | BackEnd::VhostNet | BackEnd::User => None,
            BackEnd::Packet | BackEnd::Xdp { .. } => self.control.speed(&self.interface).ok()?,
        };
        megabits.map(|megabits| u64::from(megabits) * 1_000_000)
    }

    /// Looks whether the interface is another port's, too, of this Lasthop or of another; `true`
    /// when that has changed.
    pub fn check_sharing(&mut self) -> bool {
        let claim = self.claim.as_mut();
        claim.is_some_and(|claim| claim.shared != claim.is_shared())
    }

    /// Returns the segmentation offloads that were switched since the last look, and whether they
    /// are on now. It looks once a second at most, at an interface that super-frames cross.
    pub fn switched_offloads(&mut self, now: Instant) -> Vec<(Offload, bool)> {
        let (interface, control) = (&self.interface, &self.control);
        let offloads = self.offloads.as_mut();
        offloads.map_or_else(Vec::new, |offloads| {
            offloads.changes(interface, control, now)
        })
    }

    /// Returns a warning if the interface belonged to another port, too, at the last check, with
    /// the effect. Of two ports with one interface, the one that has opened it later detects it.
    #[must_use]
    pub fn shared(&self) -> Option<String> {
        self.claim.as_ref().filter(|claim| claim.shared)?;
        let outcome = match self.back_end {
            BackEnd::Tap | BackEnd::VhostNet | BackEnd::User => "each gets a part of its frames",
            BackEnd::Packet => {
                "both get all its frames, or the other all, if its driver is \"xdp\""
            }
            BackEnd::Xdp { .. } => "this one alone gets its frames",
        };
        let interface = &self.interface;
        Some(format!(
            "interface {interface} is in use by another port, most likely of another Lasthop: \
             {outcome}"
        ))
    }

    /// How frames are moved.
    #[must_use]
    pub fn back_end(&self) -> BackEnd {
        if self.by_vhost {
            BackEnd::VhostNet
        } else {
            self.back_end
        }
    }

    /// Returns the parts for a new driver process, or for the switch. There is none beside it.
    /// `choice` is the interface's, as it is now: with [`Choice::VhostNet`], each process gets
    /// vhost devices of its own, or none where there are none.
    ///
    /// # Errors
    /// The system's refusal: the interface must be opened anew.
    pub fn hand_over(&mut self, choice: Choice) -> Result<Handover, OpenError> {
        let vhost = self.vhost_devices(choice);
        self.by_vhost = !vhost.is_empty();
        let (queues, xdp) = match &mut self.xdp {
            None => {
                let copies = self.queues.iter().map(OwnedFd::try_clone);
                let copies = copies.collect::<io::Result<Vec<_>>>();
                (context(copies, || "copies of its queues".to_owned())?, None)
            }
            Some(xdp) => {
                let start = xdp.start(&self.interface, &self.control)?;
                let sockets = xdp.take(&self.interface, &self.control)?;
                (sockets.queues, Some((sockets.memory, start)))
            }
        };
        Ok(Handover {
            back_end: self.back_end(),
            uso: self.uso,
            queues,
            vhost,
            xdp,
        })
    }

    /// Returns a vhost device for each queue, or none at all where there are none.
    fn vhost_devices(&self, choice: Choice) -> Vec<OwnedFd> {
        let interface = &self.interface;
        if self.back_end != BackEnd::Tap || choice != Choice::VhostNet {
            return Vec::new();
        }
        vhost_devices(self.queues.len()).unwrap_or_else(|why| {
            tracing::warn!(interface, "no driver \"vhost-net\": {why}; \"tap\" is used");
            Vec::new()
        })
    }

    /// Returns its parts, but for `AF_XDP` sockets and their memory, which belong to one process.
    /// `pass` makes of a descriptor what the parts have instead.
    pub fn parts<'a, Fd>(&'a self, mut pass: impl FnMut(BorrowedFd<'a>) -> Fd) -> Parts<Fd> {
        Parts {
            interface: self.interface.clone(),
            back_end: self.back_end,
            uso: self.uso,
            provisional: self.provisional,
            queues: self
                .queues
                .iter()
                .map(|queue| pass(queue.as_fd()))
                .collect(),
            control: pass(self.control.as_fd()),
            xdp: self.xdp.as_ref().map(|xdp| xdp.parts(&mut pass)),
            wire_program: self.wire_program.as_ref().map(|of| of.parts(&mut pass)),
            by_vhost: self.by_vhost,
        }
    }

    /// The interface that these are the parts of. `take` has the descriptors.
    ///
    /// # Errors
    /// The first error of `take`.
    pub fn of<Fd, E>(
        parts: Parts<Fd>,
        mut take: impl FnMut(Fd) -> Result<OwnedFd, E>,
    ) -> Result<Self, E> {
        let queues = parts.queues.into_iter().map(&mut take);
        let device = Self {
            queues: queues.collect::<Result<_, _>>()?,
            control: Control(take(parts.control)?),
            xdp: match parts.xdp {
                Some(xdp) => Some(xdp::Xdp::of(&parts.interface, xdp, &mut take)?),
                None => None,
            },
            wire_program: match parts.wire_program {
                Some(of) => Some(WireProgram::of(&parts.interface, of, &mut take)?),
                None => None,
            },
            interface: parts.interface,
            back_end: parts.back_end,
            by_vhost: parts.by_vhost,
            uso: parts.uso,
            provisional: parts.provisional,
            claim: None,
            offloads: None,
        };
        Ok(match device.back_end {
            BackEnd::User => device,
            // The claim of the supervisor before has gone with its program.
            _ => device.claimed().observed(),
        })
    }
}

/// The reason why an open interface cannot be used now.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotReadyError {
    /// It was removed.
    #[error("the interface was removed")]
    Gone,
    /// It is switched off.
    #[error("interface {0} is down")]
    Down(String),
}

impl From<NotReadyError> for OpenError {
    fn from(error: NotReadyError) -> Self {
        Self::new(error.to_string())
    }
}

/// Opens `count` vhost devices.
fn vhost_devices(count: usize) -> Result<Vec<OwnedFd>, OpenError> {
    let device = |_| vhost::Device::open().map(OwnedFd::from);
    let devices = (0..count).map(device).collect::<io::Result<Vec<_>>>();
    devices.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => " (the kernel module vhost_net is missing)",
            io::ErrorKind::PermissionDenied => " (this needs read and write access to it)",
            _ => "",
        };
        OpenError::new(format!("{}: {error}{hint}", vhost::PATH))
    })
}

/// Back ends to try.
enum Way {
    Tap,
    /// A TAP device, with vhost devices.
    VhostNet,
    Packet,
    /// In zero-copy only, or with copies where that is all there is.
    Xdp {
        copy: bool,
    },
}

fn choose(spec: &DeviceSpec, control: &Control) -> Result<Way, OpenError> {
    let name = &spec.interface;
    Ok(match spec.choice {
        Choice::Tap => Way::Tap,
        Choice::Packet => Way::Packet,
        Choice::Xdp => Way::Xdp { copy: true },
        Choice::VhostNet => Way::VhostNet,
        Choice::Auto if spec.own => Way::Tap,
        Choice::Auto => {
            let driver = control.driver(name);
            let driver = context(driver, || format!("interface {name}"))?;
            match driver.as_deref() {
                Some("tun") => Way::Tap,
                // With copies a packet socket is as fast, and knows offloads. XDP takes the
                // interface from the host, which is not for us to do where it has an address.
                _ if control.has_address(name) => Way::Packet,
                _ => Way::Xdp { copy: false },
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;
    use crate::testing::spec;

    #[test]
    fn the_next_supervisor_knows_that_vhost_devices_move_the_frames() {
        let mut device = Device::new(
            "no-such-if0",
            Control::new().unwrap(),
            BackEnd::Tap,
            true,
            Vec::new(),
        );
        for (by_vhost, back_end) in [(false, BackEnd::Tap), (true, BackEnd::VhostNet)] {
            device.by_vhost = by_vhost;
            let parts = device.parts(|fd| fd.try_clone_to_owned().unwrap());
            let next = Device::of(parts, Ok::<_, io::Error>).unwrap();
            assert_eq!(next.back_end(), back_end);
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let spec = DeviceSpec {
            interface: "no-such-if0".parse().unwrap(),
            ..spec(Choice::Packet, false)
        };
        let error = Device::open(&spec).unwrap_err().to_string();
        let missing = "interface no-such-if0: No such device (os error 19)";
        assert!(
            error == missing || error.contains("this needs root"),
            "{error}"
        );
        let elsewhere = DeviceSpec {
            netns: Some("no-such-netns".parse().unwrap()),
            ..spec
        };
        let error = Device::open(&elsewhere).unwrap_err();
        assert!(error.is_missing());
        let error = error.to_string();
        assert!(
            error.starts_with("network namespace /run/netns/no-such-netns: "),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_namespace_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("lasthop-netns-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let fifo = folder.join("fifo");
        let none = rustix::fs::CWD;
        rustix::fs::mkfifoat(none, &fifo, Mode::RUSR).unwrap();
        let spec = DeviceSpec {
            netns: Some(fifo.display().to_string().parse().unwrap()),
            ..spec(Choice::Packet, false)
        };
        let (done, outcome) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(Device::open(&spec).map(drop)));
        let outcome = outcome.recv_timeout(std::time::Duration::from_secs(20));
        std::fs::remove_dir_all(&folder).unwrap();
        let error = outcome.expect("an answer").unwrap_err();
        assert!(error.to_string().ends_with("fifo: no namespace"), "{error}");
        assert!(!error.is_missing());
    }
}
