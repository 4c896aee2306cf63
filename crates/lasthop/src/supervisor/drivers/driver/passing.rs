//! A driver and its interface, for the supervisor that takes the place of this one.

use std::time::Instant;

use driver::device::{Device, Parts};

use super::{Child, Dial, Driver, Heart, Kind};
use crate::supervisor::replace::{Giving, PassedDevice, PassedDriver, Taking};

fn pass_device<'a>(device: &'a Device, giving: &mut Giving<'a>) -> Option<PassedDevice> {
    let parts = device.parts()?;
    let queues = parts.queues.into_iter();
    Some(PassedDevice {
        interface: parts.interface,
        back_end: parts.back_end,
        uso: parts.uso,
        provisional: parts.provisional,
        queues: queues.map(|queue| giving.give(queue)).collect(),
        control: giving.give(parts.control),
    })
}

fn take_device(from: PassedDevice, fds: &mut Taking) -> Result<Device, String> {
    let queues = from.queues.into_iter().map(|place| fds.take(place));
    Ok(Device::of(Parts {
        interface: from.interface,
        back_end: from.back_end,
        uso: from.uso,
        provisional: from.provisional,
        queues: queues.collect::<Result<_, _>>()?,
        control: fds.take(from.control)?,
    }))
}

impl Driver {
    /// All that is known of it.
    ///
    /// # Errors
    /// Its interface is not one that can be passed on.
    pub(in crate::supervisor::drivers) fn pass<'a>(
        &'a self,
        giving: &mut Giving<'a>,
    ) -> Result<PassedDriver, String> {
        let device = match &self.device {
            None => None,
            Some(device) => Some(pass_device(device, giving).ok_or_else(|| {
                let (port, interface) = (&self.spec.name, &self.spec.device.interface);
                format!("{interface} of port {port} has AF_XDP sockets, which cannot be passed on: that takes a restart")
            })?),
        };
        Ok(PassedDriver {
            spec: self.spec.clone(),
            device,
            suspect: self.suspect,
            child: self.child.as_ref().map(|child| child.pass(giving)),
            doomed: self.doomed,
            dial: self.dial.as_ref().map(|dial| dial.path.clone()),
            heart: self.heart.pass(),
            refused_before: self.refused_before,
            refused: self.refused,
            reason: self.reason.clone(),
        })
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
        let child = from.child;
        let child = child.map(|child| Child::take(Kind::Driver, child, fds));
        let port = from.spec.port;
        Ok(Self {
            spec: from.spec,
            device: device.transpose()?,
            suspect: from.suspect,
            child: child.transpose()?,
            doomed: from.doomed,
            renewal: None,
            dial: from.dial.map(|path| Dial { port, path }),
            heart: Heart::take(from.heart, Instant::now()),
            refused_before: from.refused_before,
            refused: from.refused,
            reason: from.reason,
        })
    }
}
