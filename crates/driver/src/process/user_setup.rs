//! The set-up of a user port: what its driver asks the supervisor for, part by part, before it
//! starts.

use std::io;
use std::os::fd::OwnedFd;

use channel::driving::{UserForward, UserNetwork};
use channel::link::Received;
use channel::supervision::{SupervisorEvent, SupervisorRequest};
use channel::user_reports::UserQuestion;
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
    /// A ping of the supervisor that was not answered.
    pub(super) ping: Option<SupervisorEvent>,
    /// A question for a table that was not answered.
    pub(super) question: Option<UserQuestion>,
}

/// Events that come while the driver waits for an answer.
#[derive(Default)]
struct Meanwhile {
    network: Option<UserNetwork>,
    ping: Option<SupervisorEvent>,
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
        request: &SupervisorRequest,
    ) -> io::Result<(SupervisorEvent, Vec<OwnedFd>)> {
        link.send(request, &[])?;
        loop {
            match link.recv()? {
                Received::Message(
                    ping @ (SupervisorEvent::Ping | SupervisorEvent::PingDriver),
                    _,
                ) => self.ping = Some(ping),
                Received::Message(SupervisorEvent::UserNetwork(network), _) => {
                    self.network = Some(*network);
                }
                Received::Message(SupervisorEvent::UserQuestion(question), _) => {
                    self.question = Some(question);
                }
                Received::Message(SupervisorEvent::ForwardsChanged, _) => {
                    self.has_other_forwards = true;
                }
                Received::Message(answer, fds) => {
                    return Ok((answer, fds.into_iter().map(ForeignFd::vouch).collect()));
                }
                Received::Closed | Received::Nothing => return Err(bad()),
            }
        }
    }

    /// Asks for the flows of the driver before.
    fn flows(&mut self, link: &mut SupervisorLink, slots: u32) -> io::Result<Vec<KeptFlow>> {
        let mut flows = Vec::new();
        loop {
            let answer = self.ask(link, &SupervisorRequest::NextFlows)?;
            let (SupervisorEvent::KeptFlows(part), sockets) = answer else {
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
            let answer = self.ask(link, &SupervisorRequest::NextForwards)?;
            let (SupervisorEvent::Forwards(part), sockets) = answer else {
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
    let Received::Message(SupervisorEvent::UserNetwork(network), _) = link.recv()? else {
        return Err(bad());
    };
    let Received::Message(SupervisorEvent::FlowRecords { slots }, fds) = link.recv()? else {
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
        ping: meanwhile.ping,
        question: meanwhile.question,
    })
}
