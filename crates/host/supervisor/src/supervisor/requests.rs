//! Requests of control and the switch.

use std::os::fd::OwnedFd;

use ipc::supervision::{
    ControlRequest, EventToControl, EventToSwitch, PortDriverRequest, SessionRequest,
    SocketRequest, SwitchRequest,
};
use sys::foreign::ForeignFd;

use super::Supervisor;
use super::hand_over_state::Milestone;
use super::pair::{Pair, PairRef};
use crate::child::Child;
use crate::connection_table::{ConnectionTable, TableError};
use crate::kind::{Control, Role, Switch};

/// Control or the switch, which belong together.
pub(crate) trait InPair: Role + Sized {
    /// Returns the process in a pair.
    fn of(pair: &mut Pair) -> &mut Child<Self>;

    /// Handles a request of the process in this pair.
    fn handle(
        supervisor: &mut Supervisor,
        from: PairRef,
        request: Self::Request,
        fds: Vec<ForeignFd>,
    );
}

impl InPair for Control {
    fn of(pair: &mut Pair) -> &mut Child<Self> {
        &mut pair.control
    }

    fn handle(
        supervisor: &mut Supervisor,
        from: PairRef,
        request: ControlRequest,
        _: Vec<ForeignFd>,
    ) {
        supervisor.on_control_request(from, request)
    }
}

impl InPair for Switch {
    fn of(pair: &mut Pair) -> &mut Child<Self> {
        &mut pair.switch
    }

    fn handle(
        supervisor: &mut Supervisor,
        from: PairRef,
        request: SwitchRequest,
        fds: Vec<ForeignFd>,
    ) {
        supervisor.on_switch_request(from, request, fds)
    }
}

impl Supervisor {
    fn on_control_request(&mut self, from: PairRef, request: ControlRequest) {
        let answer = match request {
            ControlRequest::Ready => {
                self.on_ready(from);
                None
            }
            ControlRequest::Frozen => {
                self.hand_over.note(from, Milestone::Frozen);
                None
            }
            ControlRequest::Heartbeat => {
                self.on_heartbeat_reply::<Control>(from);
                None
            }
            ControlRequest::SwitchGone => {
                self.child::<Control>(from).map(Child::note_loss);
                None
            }
            ControlRequest::Events { had } => {
                self.on_events_request(from, had);
                None
            }
            ControlRequest::Processes => Some(EventToControl::Processes(self.processes())),
            ControlRequest::ProcessUsage => {
                Some(EventToControl::ProcessUsage(self.process_usage()))
            }
            ControlRequest::Sockets(request) => {
                self.on_socket_request(from, request);
                None
            }
            ControlRequest::Drivers(request) => {
                self.on_driver_request(from, request);
                None
            }
            ControlRequest::Guests(request) => {
                self.guests.answer(request).map(EventToControl::Guests)
            }
            ControlRequest::Users(request) => {
                let answer = self.drivers.answer_about_users(request);
                answer.map(EventToControl::Users)
            }
            ControlRequest::ConnectionTable { bytes } => {
                self.on_table_request(from, bytes);
                None
            }
        };
        if let Some(answer) = answer {
            self.send::<Control>(from, &answer, &[]);
        }
    }

    fn on_ready(&mut self, from: PairRef) {
        match from {
            PairRef::Next => self.hand_over.note(from, Milestone::Ready),
            PairRef::Serving => {
                self.pair.control.set_proved();
                self.pair.switch.set_proved();
                self.report_ready();
            }
        }
    }

    fn on_events_request(&mut self, from: PairRef, had: bool) {
        if had && from == PairRef::Serving {
            self.events.acknowledge();
        }
        if let Some(control) = self.child::<Control>(from) {
            control.set_wants_events(true);
        }
    }

    fn on_socket_request(&mut self, from: PairRef, request: SocketRequest) {
        if let Some((answer, socket)) = self.sockets.answer(request) {
            self.send::<Control>(from, &EventToControl::Sockets(answer), socket.as_slice());
            // The copy of a listening socket is not the last one: its close releases nothing, and
            // no descriptors wait for that.
            drop(socket.map(ForeignFd::vouch));
        }
    }

    fn on_driver_request(&mut self, from: PairRef, request: PortDriverRequest) {
        if let Some((answer, fd)) = self.drivers.answer(request) {
            let fd = fd.map(ForeignFd::from);
            self.send::<Control>(from, &EventToControl::Drivers(answer), fd.as_slice());
            // A copy of a BPF map: the supervisor's own keeps it.
            drop(fd.map(ForeignFd::vouch));
        }
    }

    /// Sends the table of connections to the switch, with the filter that prefilters read, and
    /// then, for readers, to control: when control has it, the switch has it, too.
    fn on_table_request(&mut self, from: PairRef, bytes: u64) {
        let files = self.table_of(from, bytes).and_then(ConnectionTable::files);
        let (answer, reader) = match files.and_then(|files| Ok((files, self.filter()?))) {
            Ok(((file, reader), filter)) => {
                let files = [Some(file), filter].into_iter().flatten();
                let files: Vec<_> = files.map(ForeignFd::from).collect();
                self.send::<Switch>(from, &EventToSwitch::ConnectionTable, &files);
                files.into_iter().map(ForeignFd::vouch).for_each(drop);
                (Ok(()), Some(ForeignFd::from(reader)))
            }
            Err(error) => (Err(error.to_string()), None),
        };
        let answer = EventToControl::ConnectionTable(answer);
        self.send::<Control>(from, &answer, reader.as_slice());
        drop(reader.map(ForeignFd::vouch));
    }

    /// Returns the filter of connections that prefilters read.
    fn filter(&self) -> Result<Option<OwnedFd>, TableError> {
        let filter = self.drivers.connection_filter();
        let copy = filter.map(|fd| fd.try_clone_to_owned()).transpose();
        copy.map_err(TableError::Descriptor)
    }

    /// Returns the table of a pair, which is made if there is none. A new pair gets one of its own
    /// if it asks for another length, as a build with another layout does.
    fn table_of(&mut self, from: PairRef, bytes: u64) -> Result<&ConnectionTable, TableError> {
        let (mut table, next) = (&mut self.setup.table, self.hand_over.next.as_mut());
        if from == PairRef::Next
            && let Some(next) = next
            && table.as_ref().is_some_and(|table| !table.has(bytes))
        {
            table = &mut next.table;
        }
        let table = match table {
            Some(table) => table,
            none => none.insert(ConnectionTable::make(bytes)?),
        };
        match table.has(bytes) {
            true => Ok(table),
            false => Err(TableError::Length(bytes)),
        }
    }

    /// A reply without a ping is harmless.
    fn on_heartbeat_reply<R: InPair>(&mut self, from: PairRef) {
        self.child::<R>(from).map(Child::on_heartbeat_reply);
    }

    fn on_switch_request(&mut self, from: PairRef, request: SwitchRequest, fds: Vec<ForeignFd>) {
        match request {
            SwitchRequest::Heartbeat => self.on_heartbeat_reply::<Switch>(from),
            // Only the serving switch owns connections and interfaces.
            SwitchRequest::Dial { .. }
            | SwitchRequest::Sessions(_)
            | SwitchRequest::InterfaceLost { .. }
            | SwitchRequest::InterfaceCounters { .. }
                if !self.hand_over.is_serving(from) => {}
            SwitchRequest::Dial { port } => {
                if let Some(reply) = self.dial(port) {
                    reply.send_by(|event, fds| self.send::<Switch>(from, event, fds));
                }
            }
            SwitchRequest::Sessions(request) => self.on_session_request(request, fds),
            SwitchRequest::InterfaceLost {
                port,
                reason,
                device_lost,
            } => self.drivers.lose_interface(port, &reason, device_lost),
            SwitchRequest::InterfaceCounters { port, counters } => {
                self.drivers.count_interface(port, counters);
            }
            SwitchRequest::Prepared => self.hand_over.note(from, Milestone::Prepared),
            SwitchRequest::Quiesced { at_ns } => {
                self.hand_over.note(from, Milestone::Quiesced { at_ns });
            }
            SwitchRequest::Serving {
                at_ns,
                connections,
                table,
            } => {
                let milestone = Milestone::Serving {
                    at_ns,
                    connections,
                    table,
                };
                self.hand_over.note(from, milestone);
            }
        }
    }

    fn on_session_request(&mut self, request: SessionRequest, fds: Vec<ForeignFd>) {
        match request {
            SessionRequest::StoreDescriptor { port, number } => {
                let has_user_ports = self.drivers.has_user_ports();
                self.saved_sessions.set_user_ports(has_user_ports);
                self.saved_sessions.store_descriptor(port, number, fds);
            }
            SessionRequest::StoreSession {
                port,
                record,
                numbers,
            } => self.saved_sessions.store_session(port, record, &numbers),
            SessionRequest::DropSession { port } => self.saved_sessions.drop_session(port),
        }
    }
}
