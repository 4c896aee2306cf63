//! Hand-over of a driver and its interface to the next supervisor, and of an interface to the next
//! switch.

use interfaces::device::{Device, OpenError};
use ipc::driving::address;

use super::dial::Dial;
use super::flows::KeptFlows;
use super::forwards::Forwards;
use super::in_switch::{self, InSwitch};
use super::questions::Questions;
use super::{Child, Driver};
use crate::record::{IncomingFds, OutgoingFds, PassedDriver, PassedFlows, RecordError};
use crate::reply::Reply;

impl Driver {
    /// Decides whether a new switch gets the interface without a dial: it may serve it itself, and
    /// it can be used.
    pub(in crate::drivers) fn offer(&mut self, is_quarantined: bool) -> bool {
        let device = self.device.as_ref();
        let is_usable = device.is_some_and(|device| {
            in_switch::is_for_switch(&self.spec, device) && device.check().is_ok()
        });
        let is_offered = is_usable && !is_quarantined && !self.suspect && !self.is_alive();
        self.in_switch.offer(is_offered);
        is_offered
    }

    /// Returns the message with the interface that is offered.
    pub(in crate::drivers) fn offered(&mut self) -> Option<Reply> {
        let choice = self.choice();
        let copies = in_switch::copies(self.device.as_mut()?, choice);
        let copies = copies.inspect_err(|error| tracing::warn!("{error}")).ok()?;
        self.reason = None;
        let dial = Dial {
            port: self.spec.port,
            path: address(&self.spec.name),
            is_quarantined: false,
        };
        Some(dial.answered(Ok::<_, OpenError>(copies)))
    }

    /// Notes that the switch is gone.
    pub(in crate::drivers) fn lose_switch(&mut self) {
        self.dial = None;
        self.forget_copies();
    }

    /// Notes that the switch is another one, which has what it was offered.
    pub(in crate::drivers) fn change_switch(&mut self) {
        let has_interface = self.in_switch.is_offered();
        self.lose_switch();
        if has_interface {
            self.in_switch.note_given();
        }
    }

    /// Adds the driver to the record for the next supervisor.
    pub(in crate::drivers) fn pass<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> PassedDriver {
        let device = self.device.as_ref();
        PassedDriver {
            spec: self.spec.clone(),
            device: device.map(|device| device.parts(|fd| outgoing.add(fd))),
            suspect: self.suspect,
            child: self.child.as_ref().map(|child| child.pass(outgoing)),
            killed: self.killed,
            in_switch: self.in_switch.has_interface(),
            dial: self.dial.as_ref().map(|dial| dial.path.clone()),
            counters_before: self.counters_before,
            counters: self.counters,
            reason: self.reason.clone(),
        }
    }

    /// Adds the kept flows to the record for the next supervisor.
    pub(in crate::drivers) fn pass_flows<'a>(
        &'a self,
        outgoing: &mut OutgoingFds<'a>,
    ) -> Option<PassedFlows> {
        let flows = self.user.flows.as_ref()?;
        let (records, slots) = flows.records();
        let records = outgoing.add(records);
        let sockets = flows.sockets();
        let listening = self.user.forwards.sockets();
        Some(PassedFlows {
            port: self.spec.name.clone(),
            records,
            slots,
            sockets: sockets.map(|(slot, fd)| (slot, outgoing.add(fd))).collect(),
            listening: listening.map(|(at, fd)| (at, outgoing.add(fd))).collect(),
        })
    }

    /// Takes kept flows from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(in crate::drivers) fn take_flows(
        &mut self,
        from: PassedFlows,
        fds: &mut IncomingFds,
    ) -> Result<(), RecordError> {
        let sockets = from.sockets.into_iter();
        let sockets = sockets.map(|(slot, fd)| Ok((slot, fds.take(fd)?.into())));
        let sockets = sockets.collect::<Result<_, RecordError>>()?;
        let listening = from.listening.into_iter();
        let listening = listening.map(|(at, fd)| Ok((at, fds.take(fd)?)));
        self.user.questions = Questions::of_predecessor();
        self.user.forwards = Forwards::of(listening.collect::<Result<_, RecordError>>()?);
        self.user.flows = Some(KeptFlows::of(fds.take(from.records)?, from.slots, sockets));
        Ok(())
    }

    /// Takes a driver from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor or the process is missing.
    pub(in crate::drivers) fn take(
        from: PassedDriver,
        fds: &mut IncomingFds,
    ) -> Result<Self, RecordError> {
        let device = from
            .device
            .map(|parts| Device::of(parts, |fd| fds.take(fd)));
        let device = device.transpose()?;
        let child = from.child.map(|child| Child::take(child, fds));
        let port = from.spec.port;
        Ok(Self {
            suspect: from.suspect,
            child: child.transpose()?,
            killed: from.killed,
            in_switch: InSwitch::of_predecessor(from.in_switch),
            dial: from.dial.map(|path| Dial {
                port,
                path,
                is_quarantined: false,
            }),
            counters_before: from.counters_before,
            counters: from.counters,
            ..Self::new(from.spec, device, from.reason)
        })
    }
}
