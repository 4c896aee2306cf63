//! The set-up of a user port: what its driver asks the supervisor for, part by part, before it
//! starts.

use std::io;
use std::os::fd::OwnedFd;

use ipc::driving::{UserForward, UserNetwork};
use ipc::link::LinkEvent;
use ipc::supervision::{EventToDriver, UserDriverRequest};
use ipc::user_reports::UserQuestion;
use sys::foreign::ForeignFd;

use super::SupervisorLink;
use crate::user::{FlowRecords, Forward, KeptFlow, KeptLeases};

/// The descriptors and parameters of a user port.
pub(super) struct UserSetup {
    pub(super) network: UserNetwork,
    pub(super) forwards: Vec<Forward>,
    pub(super) records: FlowRecords,
    pub(super) leases: KeptLeases,
    pub(super) flows: Vec<KeptFlow>,
    /// Whether a ping of the supervisor was not answered.
    pub(super) has_ping: bool,
    /// A question for a table that was not answered.
    pub(super) question: Option<UserQuestion>,
}

/// Events that come while the driver waits for an answer.
#[derive(Default)]
struct Meanwhile {
    network: Option<UserNetwork>,
    has_ping: bool,
    question: Option<UserQuestion>,
    /// The forwards are to be asked for from the first.
    has_other_forwards: bool,
}

fn bad() -> io::Error {
    io::Error::other("the supervisor sent no user port")
}

impl Meanwhile {
    /// Sends a request, and returns the answer with its descriptors.
    fn ask(
        &mut self,
        link: &mut SupervisorLink,
        request: UserDriverRequest,
    ) -> io::Result<(EventToDriver, Vec<OwnedFd>)> {
        link.send(&request.into(), &[])?;
        loop {
            match link.recv()? {
                LinkEvent::Message(EventToDriver::Ping, _) => self.has_ping = true,
                LinkEvent::Message(EventToDriver::UserNetwork(network), _) => {
                    self.network = Some(*network);
                }
                LinkEvent::Message(EventToDriver::UserQuestion(question), _) => {
                    self.question = Some(question);
                }
                LinkEvent::Message(EventToDriver::ForwardsChanged, _) => {
                    self.has_other_forwards = true;
                }
                LinkEvent::Message(answer, fds) => {
                    return Ok((answer, fds.into_iter().map(ForeignFd::vouch).collect()));
                }
                LinkEvent::Closed | LinkEvent::Nothing => return Err(bad()),
            }
        }
    }

    /// Asks for the flows of the driver before.
    fn flows(&mut self, link: &mut SupervisorLink, slots: u32) -> io::Result<Vec<KeptFlow>> {
        let mut flows = Vec::new();
        loop {
            let answer = self.ask(link, UserDriverRequest::NextFlows)?;
            let (EventToDriver::KeptFlows(part), sockets) = answer else {
                return Err(bad());
            };
            if part.is_empty() {
                return Ok(flows);
            }
            if part.len() != sockets.len() || part.iter().any(|slot| *slot >= slots) {
                return Err(bad());
            }
            let kept = part.into_iter().zip(sockets);
            flows.extend(kept.map(|(slot, socket)| KeptFlow { slot, socket }));
        }
    }

    /// Asks for the forwards.
    fn forwards(&mut self, link: &mut SupervisorLink) -> io::Result<Vec<Forward>> {
        let mut all = Vec::new();
        loop {
            let answer = self.ask(link, UserDriverRequest::NextForwards)?;
            let (EventToDriver::Forwards(part), sockets) = answer else {
                return Err(bad());
            };
            // The supervisor has said so before it answered: the answer is of the new list.
            if std::mem::take(&mut self.has_other_forwards) {
                all.clear();
            }
            if part.is_empty() {
                return Ok(all);
            }
            all.extend(forwards(part, sockets));
        }
    }
}

/// Forwards with their sockets, as they came in a message.
pub(super) fn forwards(
    part: Vec<UserForward>,
    sockets: Vec<OwnedFd>,
) -> impl Iterator<Item = Forward> {
    let part = part.into_iter().zip(sockets);
    part.map(|(spec, socket)| Forward { spec, socket })
}

/// Receives the network of a user port, its forwards, and the flows of the driver before.
///
/// # Errors
/// The link fails, or the supervisor sends something else.
pub(super) fn receive(link: &mut SupervisorLink) -> io::Result<UserSetup> {
    let LinkEvent::Message(EventToDriver::UserNetwork(network), _) = link.recv()? else {
        return Err(bad());
    };
    let LinkEvent::Message(EventToDriver::FlowRecords { slots }, fds) = link.recv()? else {
        return Err(bad());
    };
    let file = fds.first().ok_or_else(bad)?;
    let (records, leases) = (
        FlowRecords::new(file, slots)?,
        KeptLeases::new(file, slots)?,
    );
    let mut meanwhile = Meanwhile::default();
    let flows = meanwhile.flows(link, slots)?;
    let forwards = meanwhile.forwards(link)?;
    Ok(UserSetup {
        network: meanwhile.network.unwrap_or(*network),
        forwards,
        records,
        leases,
        flows,
        has_ping: meanwhile.has_ping,
        question: meanwhile.question,
    })
}
