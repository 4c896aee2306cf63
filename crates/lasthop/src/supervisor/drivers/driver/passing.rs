//! Hand-over of a driver and its interface to the next supervisor.

use std::os::fd::OwnedFd;

use driver::device::{Device, Parts, XdpParts};

use super::{Child, Dial, Driver, Kind};
use crate::supervisor::replace::{IncomingFds, OutgoingFds, PassedDevice, PassedDriver, PassedXdp};

fn pass_device<'a>(device: &'a Device, outgoing: &mut OutgoingFds<'a>) -> PassedDevice {
    let parts = device.parts();
    let queues = parts.queues.into_iter();
    PassedDevice {
        interface: parts.interface,
        back_end: parts.back_end,
        uso: parts.uso,
        provisional: parts.provisional,
        queues: queues.map(|queue| outgoing.add(queue)).collect(),
        control: outgoing.add(parts.control),
        xdp: parts.xdp.map(|xdp| PassedXdp {
            namespace: outgoing.add(xdp.namespace),
            index: xdp.index,
            pairs: xdp.pairs,
            zero_copy: xdp.zero_copy,
            unfinished: xdp.unfinished,
            map: outgoing.add(xdp.map),
            link: outgoing.add(xdp.link),
            promiscuous: outgoing.add(xdp.promiscuous),
            tags: outgoing.add(xdp.tags),
            took_tags_off: xdp.took_tags_off,
        }),
    }
}

fn take_device(from: PassedDevice, fds: &mut IncomingFds) -> Result<Device, String> {
    let queues = from.queues.into_iter().map(|index| fds.take(index));
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

fn take_xdp(from: PassedXdp, fds: &mut IncomingFds) -> Result<XdpParts<OwnedFd>, String> {
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
    /// Adds the driver to the record for the next supervisor.
    pub(in crate::supervisor::drivers) fn pass<'a>(
        &'a self,
        outgoing: &mut OutgoingFds<'a>,
    ) -> PassedDriver {
        let device = self.device.as_ref();
        let device = device.map(|device| pass_device(device, outgoing));
        PassedDriver {
            spec: self.spec.clone(),
            device,
            suspect: self.suspect,
            child: self.child.as_ref().map(|child| child.pass(outgoing)),
            killed: self.killed,
            dial: self.dial.as_ref().map(|dial| dial.path.clone()),
            refused_before: self.refused_before,
            refused: self.refused,
            reason: self.reason.clone(),
        }
    }

    /// Takes a driver from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor or the process is missing.
    pub(in crate::supervisor::drivers) fn take(
        from: PassedDriver,
        fds: &mut IncomingFds,
    ) -> Result<Self, String> {
        let device = from.device.map(|device| take_device(device, fds));
        let child = from
            .child
            .map(|child| Child::take(Kind::Driver, child, fds));
        let port = from.spec.port;
        Ok(Self {
            events: Vec::new(),
            spec: from.spec,
            device: device.transpose()?,
            suspect: from.suspect,
            child: child.transpose()?,
            killed: from.killed,
            renewal: None,
            dial: from.dial.map(|path| Dial { port, path }),
            refused_before: from.refused_before,
            refused: from.refused,
            reason: from.reason,
        })
    }
}
