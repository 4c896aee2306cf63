//! A driver and its interface, for the supervisor that takes the place of this one.

use std::os::fd::OwnedFd;

use driver::device::{Device, Parts, XdpParts};

use super::{Child, Dial, Driver, Kind};
use crate::supervisor::replace::{Giving, PassedDevice, PassedDriver, PassedXdp, Taking};

fn pass_device<'a>(device: &'a Device, giving: &mut Giving<'a>) -> PassedDevice {
    let parts = device.parts();
    let queues = parts.queues.into_iter();
    PassedDevice {
        interface: parts.interface,
        back_end: parts.back_end,
        uso: parts.uso,
        provisional: parts.provisional,
        queues: queues.map(|queue| giving.give(queue)).collect(),
        control: giving.give(parts.control),
        xdp: parts.xdp.map(|xdp| PassedXdp {
            namespace: giving.give(xdp.namespace),
            index: xdp.index,
            pairs: xdp.pairs,
            zero_copy: xdp.zero_copy,
            unfinished: xdp.unfinished,
            map: giving.give(xdp.map),
            link: giving.give(xdp.link),
            promiscuous: giving.give(xdp.promiscuous),
            tags: giving.give(xdp.tags),
            took_tags_off: xdp.took_tags_off,
        }),
    }
}

fn take_device(from: PassedDevice, fds: &mut Taking) -> Result<Device, String> {
    let queues = from.queues.into_iter().map(|place| fds.take(place));
    let queues = queues.collect::<Result<_, _>>()?;
    let control = fds.take(from.control)?;
    let xdp = from.xdp.map(|xdp| take_xdp(xdp, fds));
    Ok(Device::of(Parts {
        interface: from.interface,
        back_end: from.back_end,
        uso: from.uso,
        provisional: from.provisional,
        queues,
        control,
        xdp: xdp.transpose()?,
    }))
}

fn take_xdp(from: PassedXdp, fds: &mut Taking) -> Result<XdpParts<OwnedFd>, String> {
    Ok(XdpParts {
        namespace: fds.take(from.namespace)?,
        index: from.index,
        pairs: from.pairs,
        zero_copy: from.zero_copy,
        unfinished: from.unfinished,
        map: fds.take(from.map)?,
        link: fds.take(from.link)?,
        promiscuous: fds.take(from.promiscuous)?,
        tags: fds.take(from.tags)?,
        took_tags_off: from.took_tags_off,
    })
}

impl Driver {
    /// All that is known of it.
    pub(in crate::supervisor::drivers) fn pass<'a>(
        &'a self,
        giving: &mut Giving<'a>,
    ) -> PassedDriver {
        let device = self.device.as_ref();
        let device = device.map(|device| pass_device(device, giving));
        PassedDriver {
            spec: self.spec.clone(),
            device,
            suspect: self.suspect,
            child: self.child.as_ref().map(|child| child.pass(giving)),
            doomed: self.doomed,
            dial: self.dial.as_ref().map(|dial| dial.path.clone()),
            heart: self.child.as_ref().map_or((false, false), Child::beat),
            refused_before: self.refused_before,
            refused: self.refused,
            reason: self.reason.clone(),
        }
    }

    /// One that the supervisor before this one had.
    ///
    /// # Errors
    /// Something of it is not there.
    pub(in crate::supervisor::drivers) fn take(
        from: PassedDriver,
        fds: &mut Taking,
    ) -> Result<Self, String> {
        let device = from.device.map(|device| take_device(device, fds));
        let child = from.child.map(|mut child| {
            if let Some(alive) = &mut child.alive {
                alive.beat = from.heart;
            }
            Child::take(Kind::Driver, child, fds)
        });
        let port = from.spec.port;
        Ok(Self {
            happened: Vec::new(),
            spec: from.spec,
            device: device.transpose()?,
            suspect: from.suspect,
            child: child.transpose()?,
            doomed: from.doomed,
            renewal: None,
            dial: from.dial.map(|path| Dial { port, path }),
            refused_before: from.refused_before,
            refused: from.refused,
            reason: from.reason,
        })
    }
}
