//! State of one connection, and the messages about it as a whole.

use std::fmt;
use std::sync::Arc;

use memory::GuestMemory;
use sys::foreign::ForeignFd;
use virtio::vhost_user::{Backend, Fault, Info, Message, QueueInfo, QueueSummary, Reply};
use wire::virtio::features::Features;

use crate::message::{self, Init, MODE_ETHERNET, PAYLOAD_LEN, SECRET_LEN, VERSION};
use crate::regions::{MAX_REGIONS, Regions};
use crate::rings::{MAX_LOG2_SIZE, Ring};
use crate::table::{self, Answer, Legal, Outcome, Refusal, Request, Row};

/// Features of each queue: frames without a header, which may continue in the next buffer.
pub const FEATURES: Features = Features::VERSION_1.union(Features::NET_MRG_RXBUF);

/// Offer of a port to its client.
#[derive(Clone)]
pub struct Offer {
    /// Name of the program, in `HELLO`.
    pub program: String,
    /// Name of the port, in `CONNECTED`.
    pub port: String,
    /// Number of the interface that the client asks for.
    pub id: u32,
    /// The secret that the client has to know, 1 to 24 bytes; without one every client may
    /// connect, whatever secret it sends.
    pub secret: Option<String>,
    /// Most rings of each direction, 1 to 128.
    pub queue_pairs: u16,
}

impl fmt::Debug for Offer {
    /// Shows all but the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer")
            .field("port", &self.port)
            .field("id", &self.id)
            .field("queue_pairs", &self.queue_pairs)
            .finish_non_exhaustive()
    }
}

/// The progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Stage {
    /// `HELLO` is sent.
    Greeted,
    /// `INIT` is served: regions and rings may come.
    Initialised,
    /// `CONNECT` is served, and `CONNECTED` may still wait to be sent.
    Connecting,
    /// `CONNECTED` is sent: the queues run.
    Connected,
}

/// The server's side of one memif connection.
///
/// It holds the regions and rings of the client, and starts the queues of a [`Backend`] when the
/// client knows that it is connected. End it with [`Session::close`]; dropping it alone leaves the
/// queues of the back end running.
#[derive(Debug)]
pub struct Session {
    pub(crate) offer: Offer,
    pub(crate) stage: Stage,
    /// Name of the client's program, of `INIT`.
    pub(crate) program: String,
    /// Name of the client's interface, of `CONNECT`.
    pub(crate) interface: String,
    pub(crate) regions: Regions,
    /// Snapshot of `regions`, since `CONNECT`.
    pub(crate) memory: Option<Arc<GuestMemory>>,
    /// Rings to the client, and from it.
    pub(crate) rings: [Vec<Ring>; 2],
    refused_messages: u64,
    /// The number of the next descriptor.
    pub(crate) next_number: u64,
    /// The session was restored, and its next message may have been served before.
    pub(crate) again: bool,
}

impl Session {
    /// Creates a session in its first state. Ring pairs are limited to 1 to 128.
    #[must_use]
    pub fn new(mut offer: Offer) -> Self {
        offer.queue_pairs = offer.queue_pairs.clamp(1, 128);
        Self {
            offer,
            stage: Stage::Greeted,
            program: String::new(),
            interface: String::new(),
            regions: Regions::new(),
            memory: None,
            rings: [Vec::new(), Vec::new()],
            refused_messages: 0,
            next_number: 0,
            again: false,
        }
    }

    /// Returns the first message of the connection, which the server sends.
    #[must_use]
    pub fn hello(&self) -> Reply {
        let Offer {
            program,
            queue_pairs,
            ..
        } = &self.offer;
        message::hello(program, MAX_REGIONS, *queue_pairs, MAX_LOG2_SIZE)
    }

    /// Serves one message and returns its reply.
    ///
    /// # Errors
    /// The connection is to be ended, for the reason given; [`Session::close`] stops the queues.
    /// All descriptors of the message are closed then.
    pub fn handle(
        &mut self,
        message: Message,
        fds: Vec<impl Into<ForeignFd>>,
        backend: &mut dyn Backend,
    ) -> Result<Option<Reply>, Fault> {
        let mut fds: Vec<ForeignFd> = fds.into_iter().map(Into::into).collect();
        let Some(row) = table::find(message.code) else {
            let name = format!("message {}", message.code);
            return Err(self.refused(name, "no such message is known".into()));
        };
        row.check_fds(fds.len())?;
        if message.payload.len() != PAYLOAD_LEN {
            return Err(Fault::WrongSize {
                name: row.name,
                got: message.payload.len(),
                expected: PAYLOAD_LEN.to_string(),
            });
        }
        let request = Request {
            payload: message.payload,
            fd: fds.pop(),
        };
        let answer = self
            .check_legal(row)
            .and_then(|()| (row.handler)(self, request, backend));
        match answer {
            Ok(Answer::Reply(reply)) => Ok(Some(reply)),
            Ok(Answer::Left(reason)) => Err(Fault::Left(reason)),
            Err(Refusal(reason)) => Err(self.refused(row.name.into(), reason)),
        }
    }

    fn refused(&mut self, name: String, reason: String) -> Fault {
        self.refused_messages += 1;
        Fault::Refused { name, reason }
    }

    fn check_legal(&self, row: &Row) -> Result<(), Refusal> {
        let needs = match row.legal {
            Legal::Always => return Ok(()),
            Legal::Never(why) => return Err(why.into()),
            Legal::In(stage) => stage,
        };
        if self.stage == needs || self.was_served_before(row.code) {
            return Ok(());
        }
        Err(match self.stage {
            Stage::Greeted => "it comes before INIT".into(),
            Stage::Initialised => "it comes a second time".into(),
            Stage::Connecting | Stage::Connected => "it comes after CONNECT".into(),
        })
    }

    /// Returns whether the message may be one that the former process served and did not take from
    /// the socket.
    fn was_served_before(&self, code: u32) -> bool {
        let has_rings = self.rings.iter().any(|rings| !rings.is_empty());
        match (code, self.stage) {
            _ if !self.again => false,
            (message::code::INIT, Stage::Initialised) => self.regions.all.is_empty() && !has_rings,
            (message::code::CONNECT, Stage::Connecting) => true,
            _ => false,
        }
    }

    /// Reports that all messages to the client have left. After `CONNECTED` its queues are started,
    /// because clients set their indices to zero when they receive it. Returns whether the session
    /// has changed.
    pub fn sent(&mut self, backend: &mut dyn Backend) -> bool {
        if self.stage != Stage::Connecting {
            return false;
        }
        self.stage = Stage::Connected;
        self.start_all(backend);
        true
    }

    /// Reports that the message at which the former process may have died was served, or that there
    /// was none.
    pub fn settled(&mut self) {
        self.again = false;
    }

    /// Stops all queues and releases memory and descriptors. The session is then in its first state
    /// again.
    pub fn close(&mut self, backend: &mut dyn Backend) {
        self.stop_all(backend);
        let (refused_messages, had_memory) = (self.refused_messages, self.memory.is_some());
        *self = Self::new(self.offer.clone());
        self.refused_messages = refused_messages;
        if had_memory {
            backend.set_memory(None);
        }
    }

    /// Returns whether the client truncated a part of the memory that it shares; see
    /// [`mapping::survive_truncation`].
    #[must_use]
    pub fn memory_is_lost(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_lost())
    }

    /// Returns whether the client is connected: its queues run, or have run.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.stage == Stage::Connected
    }

    /// Returns the name of the client's program, empty before `INIT`.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Returns the status of the session.
    #[must_use]
    pub fn info(&self) -> Info {
        Info {
            features: self.is_connected().then_some(FEATURES),
            protocol: None,
            status: 0,
            regions: self.regions.all.len(),
            memory_bytes: self.memory.as_ref().map_or(0, |memory| memory.size()),
            logging: false,
            inflight: false,
            no_start: None,
            last_refusal: None,
            refused_messages: self.refused_messages,
            iotlb: None,
            queues: self.queue_infos(),
        }
    }

    /// Returns which states the queues are in, as [`Session::info`] has them.
    #[must_use]
    pub fn queue_summary(&self) -> QueueSummary {
        let mut summary = QueueSummary::default();
        for ring in self.rings.iter().flatten() {
            summary.add(ring.running, true, ring.problem.is_some());
        }
        summary
    }

    fn queue_infos(&self) -> Vec<QueueInfo> {
        let pairs = 0..usize::from(self.offer.queue_pairs);
        let both = pairs.flat_map(|at| [self.rings[0].get(at), self.rings[1].get(at)]);
        let rings = both.enumerate();
        rings
            .map(|(index, ring)| Ring::info(ring, index as u16))
            .collect()
    }
}

/// Handler of messages whose row has `Never`; the row's reason comes first.
pub(crate) fn never(_: &mut Session, _: Request, _: &mut dyn Backend) -> Outcome {
    Err("not a message of a client".into())
}

/// `INIT`: the interface that the client wants.
pub(crate) fn init(session: &mut Session, request: Request, _: &mut dyn Backend) -> Outcome {
    let init = Init::parse(&request.payload).ok_or("payload too short")?;
    let Offer { id, secret, .. } = &session.offer;
    if init.version != VERSION {
        let [major, minor] = init.version.to_be_bytes();
        return Err(format!("memif version {major}.{minor}, 2.0 is served").into());
    }
    if init.id != *id {
        return Err(format!("interface {}, this port has id {id}", init.id).into());
    }
    if init.mode != MODE_ETHERNET {
        return Err(format!("interface mode {}, Ethernet (0) is served", init.mode).into());
    }
    if let Some(secret) = secret {
        check_secret(secret, &init.secret)?;
    }
    session.program = init.name;
    session.stage = Stage::Initialised;
    Ok(Answer::Reply(message::ack()))
}

/// Compares secrets in a time that does not depend on the bytes that are equal.
fn check_secret(expected: &str, got: &[u8; SECRET_LEN]) -> Result<(), Refusal> {
    if got[0] == 0 {
        return Err("the port requires a secret".into());
    }
    let mut padded = [0; SECRET_LEN];
    let bytes = expected.as_bytes();
    let len = bytes.len().min(SECRET_LEN);
    padded[..len].copy_from_slice(&bytes[..len]);
    let both = padded.iter().zip(got);
    let difference = both.fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    if difference != 0 {
        return Err("wrong secret".into());
    }
    Ok(())
}

/// `CONNECT`: the rings are checked; they are used when the answer has left.
pub(crate) fn connect(session: &mut Session, request: Request, _: &mut dyn Backend) -> Outcome {
    let name = message::interface_name(&request.payload).ok_or("payload too short")?;
    if session.memory.is_none() {
        session.memory = Some(session.regions.snapshot()?);
        if let Err(refusal) = session.check_rings() {
            session.memory = None;
            return Err(refusal);
        }
    }
    session.interface = name;
    session.stage = Stage::Connecting;
    Ok(Answer::Reply(message::connected(&session.offer.port)))
}

/// `DISCONNECT`: the client ends the connection.
pub(crate) fn disconnect(_: &mut Session, request: Request, _: &mut dyn Backend) -> Outcome {
    let reason = message::disconnect_reason(&request.payload).ok_or("payload too short")?;
    Ok(Answer::Left(reason))
}
