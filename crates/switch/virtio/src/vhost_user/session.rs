//! State of one connection: the negotiated features, and the messages about them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mapping::Quota;
use memory::{DirtyLog, GuestMemory};
use sys::foreign::ForeignFd;
use wire::virtio::features::Features;
use wire::virtio::vhost_user::ProtocolFeatures;

use super::backend::{Backend, Offer};
use super::channel::BackendChannel;
use super::config::NetConfig;
use super::detach::QueueSnapshot;
use super::fault::{Fault, Refusal};
use super::inflight::InflightArea;
use super::iotlb::{IotlbInfo, Translation};
use super::message::{F_LOG_ALL, F_PROTOCOL_FEATURES, Message, Payload, Reader, Reply};
use super::queues::{QueueInfo, Vring};
use super::regions::{LogFile, MappedRegion};
use super::table::{self, Legal, ReplyKind, Row};
use crate::queue::netmap_program;

/// Device status bits (virtio 1.3, 2.1).
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 64;

/// The back end's side of one vhost-user connection.
///
/// It holds the negotiated features and the settings of each queue, and calls a [`Backend`] when a
/// queue is complete. End it with [`Session::close`]; dropping it alone leaves the queues of the
/// back end running.
#[derive(Debug)]
pub struct Session {
    pub(super) offer: Offer,
    pub(super) config: NetConfig,
    /// Value of `SET_FEATURES`, with the bits of vhost itself.
    pub(super) acked: Option<u64>,
    pub(super) protocol: Option<ProtocolFeatures>,
    pub(super) status: u8,
    /// Value of `NET_SET_MTU`.
    pub(super) mtu: Option<u16>,
    /// Quota for everything that is mapped for the front end.
    pub(super) quota: Arc<Quota>,
    pub(super) memory: Option<Arc<GuestMemory>>,
    /// Regions of `memory`.
    pub(super) regions: Vec<MappedRegion>,
    pub(super) log: Option<Arc<DirtyLog>>,
    /// File of `log`.
    pub(super) log_file: Option<LogFile>,
    pub(super) inflight: Option<InflightArea>,
    /// Request channel, with the number of its descriptor.
    pub(super) channel: Option<(BackendChannel, u64)>,
    pub(super) queues: Vec<Vring>,
    pub(super) refusals: Refusals,
    pub(super) iotlb: Option<Translation>,
    /// Positions of the queues of connections that broke.
    pub(super) snapshots: Vec<QueueSnapshot>,
    /// The number of the next descriptor.
    pub(super) next_number: u64,
    /// The session was restored, and its next message may have been served before.
    pub(super) again: bool,
}

/// Messages that were refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    last: Option<String>,
    count: u64,
}

impl Refusals {
    /// Notes a refusal that does not end the connection.
    pub(super) fn note(&mut self, name: &str, reason: &str) {
        self.count += 1;
        self.last = Some(format!("{name}: {reason}"));
    }
}

/// Status of a session.
#[derive(Debug, Clone)]
pub struct Info {
    /// Negotiated virtio features, none before `SET_FEATURES`.
    pub features: Option<Features>,
    /// Negotiated protocol features.
    pub protocol: Option<ProtocolFeatures>,
    /// Device status as the driver wrote it, 0 when it never did.
    pub status: u8,
    /// Memory regions.
    pub regions: usize,
    /// Bytes of guest memory.
    pub memory_bytes: u64,
    /// Whether writes to guest memory are logged for a migration.
    pub logging: bool,
    /// Whether there is an inflight area.
    pub inflight: bool,
    /// The reason why no queue starts, whatever is set up: the negotiated features are refused, or
    /// `VIRTIO_F_ACCESS_PLATFORM` was taken and the channel for its questions is missing.
    pub no_start: Option<String>,
    /// The last message that was refused with an acknowledgement, and why.
    pub last_refusal: Option<String>,
    /// Messages that were refused, whatever followed.
    pub refused_messages: u64,
    /// Translations, of a guest with an IOMMU.
    pub iotlb: Option<IotlbInfo>,
    /// All queues by index.
    pub queues: Vec<QueueInfo>,
}

/// A message that passed its row's checks.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) payload: Vec<u8>,
    pub(super) fds: Vec<ForeignFd>,
}

impl Request {
    pub(super) fn parse<T: Payload>(&self) -> Result<T, Refusal> {
        T::parse(&mut Reader::new(&self.payload)).ok_or_else(|| "payload too short".into())
    }
}

/// Result of a handler.
#[derive(Debug)]
pub(super) enum Answer {
    /// Success; acknowledged on demand.
    Done,
    /// Refusal that does not end the connection: a non-zero acknowledgement on demand.
    Failed(String),
    /// The message's own reply.
    Payload(Vec<u8>, Option<OwnedFd>),
}

impl Answer {
    pub(super) fn payload(bytes: Vec<u8>) -> Self {
        Answer::Payload(bytes, None)
    }

    pub(super) fn u64(value: u64) -> Self {
        Answer::payload(value.to_ne_bytes().to_vec())
    }
}

impl Session {
    /// Creates a session in its first state. Queue pairs are limited to 1 to 128.
    #[must_use]
    pub fn new(mut offer: Offer) -> Self {
        offer.queue_pairs = offer.queue_pairs.clamp(1, 128);
        let count = usize::from(offer.queue_pairs) * 2;
        Session {
            config: NetConfig::new(&offer),
            offer,
            acked: None,
            protocol: None,
            status: 0,
            mtu: None,
            quota: Quota::new(),
            memory: None,
            regions: Vec::new(),
            log: None,
            log_file: None,
            inflight: None,
            channel: None,
            queues: (0..count).map(|_| Vring::default()).collect(),
            refusals: Refusals::default(),
            iotlb: None,
            snapshots: Vec::new(),
            next_number: 0,
            again: false,
        }
    }

    /// Serves one message and returns its reply.
    ///
    /// # Errors
    /// The caller must close the connection, for the reason given; [`Session::close`] stops the
    /// queues. All descriptors of the message are closed then.
    pub fn handle(
        &mut self,
        message: Message,
        fds: Vec<impl Into<ForeignFd>>,
        backend: &mut dyn Backend,
    ) -> Result<Option<Reply>, Fault> {
        let fds: Vec<ForeignFd> = fds.into_iter().map(Into::into).collect();
        let (code, need_reply) = (message.code, message.need_reply);
        let Some(row) = table::find(code) else {
            let name = format!("message {code}");
            return self.refuse(&message, name, "no such message is known".into());
        };
        row.check_fds(fds.len())?;
        if let Err(Refusal(reason)) = self.check_legal(row) {
            return self.refuse(&message, row.name.into(), reason);
        }
        row.check_size(message.payload.len())?;
        let request = Request {
            payload: message.payload,
            fds,
        };
        let answer = (row.handler)(self, request, backend);
        self.check_unmapped(row.name)?;
        match answer {
            Ok(Answer::Payload(payload, fd)) => Ok(Some(Reply { code, payload, fd })),
            Ok(Answer::Done) => Ok(self.ack(code, need_reply, 0)),
            Ok(Answer::Failed(reason)) => {
                self.refusals.note(row.name, &reason);
                Ok(self.ack(code, need_reply, 1))
            }
            Err(Refusal(reason)) => {
                // A reply of its own cannot carry an error.
                let need_reply = need_reply && row.reply == ReplyKind::OnDemand;
                let message = Message {
                    code,
                    need_reply,
                    payload: Vec::new(),
                };
                self.refuse(&message, row.name.into(), reason)
            }
        }
    }

    /// Stops all queues and releases guest memory, descriptors and channels. The session is then in
    /// its first state again.
    pub fn close(&mut self, backend: &mut dyn Backend) {
        self.stop_all(backend);
        self.forget_translations();
        if let Some((channel, _)) = self.channel.take() {
            channel.end();
        }
        let refusals = std::mem::take(&mut self.refusals);
        let had_memory = self.memory.is_some();
        *self = Session::new(self.offer.clone());
        self.refusals = refusals;
        if had_memory {
            backend.set_memory(None);
        }
    }

    /// Stops a queue with a fault in the data path (the guest violated the ring's rules), and
    /// signals the front end's error descriptor. The queue stays stopped until the front end sets
    /// it up anew.
    pub fn queue_failed(&mut self, index: u16, reason: &str, backend: &mut dyn Backend) {
        if self.fail_queue(index, reason, backend) && self.has(ProtocolFeatures::STATUS) {
            self.status |= NEEDS_RESET;
        }
    }

    /// Changes the port's link state. Returns whether the front end was notified.
    pub fn set_link(&mut self, up: bool) -> bool {
        self.offer.link_up = up;
        self.config.set_link(up);
        self.config_changed()
    }

    /// Changes the port's MTU. Returns whether the front end was notified; the running driver keeps
    /// its own.
    pub fn set_mtu(&mut self, mtu: u16) -> bool {
        self.offer.mtu = mtu;
        self.config.set_mtu(mtu);
        self.config_changed()
    }

    fn config_changed(&mut self) -> bool {
        self.has(ProtocolFeatures::CONFIG)
            && self
                .channel
                .as_mut()
                .is_some_and(|(channel, _)| channel.config_changed())
    }

    /// Returns the status of the session.
    #[must_use]
    pub fn info(&self) -> Info {
        Info {
            features: self.acked.map(|_| self.features()),
            protocol: self.protocol,
            status: self.status,
            regions: self.memory.as_ref().map_or(0, |m| m.regions().len()),
            memory_bytes: self.memory.as_ref().map_or(0, |m| m.size()),
            logging: self.logging() && self.log.is_some(),
            inflight: self.inflight.is_some(),
            no_start: self.no_start(),
            last_refusal: self.refusals.last.clone(),
            refused_messages: self.refusals.count,
            iotlb: self.iotlb_info(),
            queues: self.queue_infos(),
        }
    }

    /// Returns the last message that was refused with an acknowledgement, and why.
    #[must_use]
    pub fn last_refusal(&self) -> Option<&str> {
        self.refusals.last.as_deref()
    }

    /// Returns whether features are chosen now: a driver that is reset, or ends, takes its choice
    /// back.
    #[must_use]
    pub fn has_chosen_features(&self) -> bool {
        self.negotiated()
    }

    /// Returns whether the driver has negotiated features.
    pub(super) fn negotiated(&self) -> bool {
        self.acked.is_some()
    }

    /// Returns the negotiated virtio features, without the bits of vhost itself.
    pub(super) fn features(&self) -> Features {
        let own = F_LOG_ALL | F_PROTOCOL_FEATURES;
        Features::from_bits_retain(self.acked.unwrap_or(0) & !own)
    }

    pub(super) fn packed(&self) -> bool {
        self.features().contains(Features::RING_PACKED)
    }

    /// Returns the name of the client program of slot queues, which it writes beside its first
    /// queue.
    #[must_use]
    pub fn program(&self) -> Option<String> {
        let running = self.queues.iter().find_map(|queue| queue.running);
        let driver = running.filter(|_| self.serves_slots())?.driver;
        netmap_program(self.memory.as_ref()?, driver)
    }

    /// Returns whether the port serves slot queues instead of virtqueues.
    pub(super) fn serves_slots(&self) -> bool {
        let slots = ProtocolFeatures::SLOT_QUEUES;
        self.offer.protocol.contains(slots)
    }

    /// Returns whether rings start disabled ("Ring states").
    pub(super) fn rings_start_disabled(&self) -> bool {
        self.acked.is_some_and(|f| f & F_PROTOCOL_FEATURES != 0)
    }

    pub(super) fn logging(&self) -> bool {
        self.acked.is_some_and(|f| f & F_LOG_ALL != 0)
    }

    /// Returns the offered virtio features, as in the session's [`Offer`].
    #[must_use]
    pub fn offered_features(&self) -> Features {
        self.offer.features
    }

    /// Returns whether queues start only with `VIRTIO_F_ACCESS_PLATFORM`, as in the session's
    /// [`Offer`].
    #[must_use]
    pub fn requires_iommu(&self) -> bool {
        self.offer.iommu_required
    }

    pub(super) fn offered(&self) -> u64 {
        let log = if self.serves_slots() { 0 } else { F_LOG_ALL };
        self.offer.features.bits() | log | F_PROTOCOL_FEATURES
    }

    pub(super) fn has(&self, feature: ProtocolFeatures) -> bool {
        self.protocol.is_some_and(|p| p.contains(feature))
    }

    fn check_legal(&self, row: &Row) -> Result<(), Refusal> {
        let needs = match row.legal {
            Legal::Always => return Ok(()),
            Legal::Never(why) => return Err(why.into()),
            Legal::Feature(needs) => {
                if self.features().contains(needs) {
                    return Ok(());
                }
                let names: Vec<_> = needs.iter_names().map(|(name, _)| name).collect();
                let names = names.join(", ");
                return Err(format!("feature {names} was not negotiated").into());
            }
            Legal::Protocol(needs) => needs,
            Legal::ProtocolAndFeatures(needs) => {
                if !self.negotiated() {
                    return Err("it comes before SET_FEATURES".into());
                }
                needs
            }
        };
        if self.has(needs) {
            return Ok(());
        }
        let names: Vec<_> = needs.iter_names().map(|(name, _)| name).collect();
        Err(format!("protocol feature {} was not negotiated", names.join(", ")).into())
    }

    /// Builds an acknowledgement, when the front end requested it and may. Protocol features count
    /// as they are after the message, so that `SET_PROTOCOL_FEATURES` itself can be acknowledged.
    fn ack(&self, code: u32, need_reply: bool, value: u64) -> Option<Reply> {
        let desired = need_reply && self.has(ProtocolFeatures::REPLY_ACK);
        desired.then(|| Reply::new(code, value.to_ne_bytes().to_vec()))
    }

    fn refuse(
        &mut self,
        message: &Message,
        name: String,
        reason: String,
    ) -> Result<Option<Reply>, Fault> {
        match self.ack(message.code, message.need_reply, 1) {
            Some(reply) => {
                self.refusals.note(&name, &reason);
                Ok(Some(reply))
            }
            None => {
                self.refusals.count += 1;
                Err(Fault::Refused { name, reason })
            }
        }
    }

    fn reset(&mut self, backend: &mut dyn Backend) {
        self.stop_all(backend);
        for vring in &mut self.queues {
            vring.reset();
        }
        self.forget_translations();
        self.acked = None;
        self.inflight = None;
        self.status = 0;
        self.update_log(backend);
        backend.reset();
    }
}

type Outcome = Result<Answer, Refusal>;

/// `SET_OWNER` marks the start of a session, which is the connection here. `RESET_OWNER` is
/// deprecated, and ignoring it is one of the two behaviours that the specification recommends.
pub(super) fn nothing(_: &mut Session, _: Request, _: &mut dyn Backend) -> Outcome {
    Ok(Answer::Done)
}

/// Handler of messages with `Never` in their row; the row's reason comes first.
pub(super) fn not_offered(_: &mut Session, _: Request, _: &mut dyn Backend) -> Outcome {
    Err("not offered".into())
}

/// `GET_FEATURES`.
pub(super) fn get_features(session: &mut Session, _: Request, _: &mut dyn Backend) -> Outcome {
    Ok(Answer::u64(session.offered()))
}

/// `SET_FEATURES`. While a queue runs, only logging may change. Front ends send it before a driver
/// runs, so conflicts between features are found only when a queue starts.
pub(super) fn set_features(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let desired: u64 = request.parse()?;
    let foreign = desired & !session.offered();
    if foreign != 0 {
        return Err(format!("features {foreign:#x} were not offered").into());
    }
    let changed = session.acked.unwrap_or(0) ^ desired;
    if session.any_running() && changed & !F_LOG_ALL != 0 {
        return Err(format!("features {changed:#x} change while queues run").into());
    }
    if changed & desired & F_LOG_ALL != 0 {
        session.check_log()?;
    }
    if desired & Features::ACCESS_PLATFORM.bits() != 0 {
        session.create_iotlb(backend)?;
    }
    session.acked = Some(desired);
    if !session.any_running() {
        session.forget_translations();
    }
    session.update_log(backend);
    session.start_all(backend);
    Ok(Answer::Done)
}

/// `GET_PROTOCOL_FEATURES`.
pub(super) fn get_protocol_features(
    session: &mut Session,
    _: Request,
    _: &mut dyn Backend,
) -> Outcome {
    Ok(Answer::u64(session.offer.protocol.bits()))
}

/// `SET_PROTOCOL_FEATURES`. Legal before `SET_FEATURES`; QEMU repeats it for every queue pair.
pub(super) fn set_protocol_features(
    session: &mut Session,
    request: Request,
    _: &mut dyn Backend,
) -> Outcome {
    let desired: u64 = request.parse()?;
    let foreign = desired & !session.offer.protocol.bits();
    if foreign != 0 {
        return Err(format!("protocol features {foreign:#x} were not offered").into());
    }
    let desired = ProtocolFeatures::from_bits_retain(desired);
    if session.serves_slots() && !desired.contains(ProtocolFeatures::SLOT_QUEUES) {
        return Err("the port is for netmap clients, whose rings are slot queues".into());
    }
    session.protocol = Some(desired);
    Ok(Answer::Done)
}

/// `GET_QUEUE_NUM`: the number of *queues*, as in the specification; Cloud Hypervisor and the
/// `vhost` crate compare their queue indices with it. QEMU's network front end compares it with its
/// number of queue *pairs*. With a number of pairs the former would refuse every port; with a
/// number of queues QEMU can configure too many pairs, and the first message for a missing queue is
/// refused by name.
///
/// On ports of slot queues the upper 32 bits are the number of slots of each queue, unless the
/// client chooses another: a part of [`ProtocolFeatures::SLOT_QUEUES`].
pub(super) fn get_queue_num(session: &mut Session, _: Request, _: &mut dyn Backend) -> Outcome {
    let slots = u64::from(session.offer.slots) << 32;
    Ok(Answer::u64(session.queues.len() as u64 | slots))
}

/// `SEND_RARP`: the first 6 bytes of the payload are the address.
pub(super) fn send_rarp(_: &mut Session, request: Request, backend: &mut dyn Backend) -> Outcome {
    let mac = Reader::new(&request.payload)
        .array()
        .ok_or("payload too short")?;
    backend.send_rarp(mac);
    Ok(Answer::Done)
}

/// `NET_SET_MTU`: 68 (the least of IPv4, virtio 1.3, 5.1.4.1) to 65535. QEMU sends it before
/// `SET_FEATURES`.
pub(super) fn set_mtu(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let desired: u64 = request.parse()?;
    let mtu = u16::try_from(desired).ok().filter(|mtu| *mtu >= 68);
    let Some(mtu) = mtu else {
        return Ok(Answer::Failed(format!(
            "MTU {desired}, 68 to 65535 are possible"
        )));
    };
    match backend.set_mtu(mtu) {
        Ok(()) => {
            session.config.set_mtu(mtu);
            session.mtu = Some(mtu);
        }
        Err(reason) => return Ok(Answer::Failed(reason)),
    }
    Ok(Answer::Done)
}

/// `RESET_DEVICE`: rings stopped and disabled, features forgotten; memory and protocol features
/// stay.
pub(super) fn reset_device(
    session: &mut Session,
    _: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    session.reset(backend);
    Ok(Answer::Done)
}

/// `SET_STATUS`. 0 resets the device. `FEATURES_OK` stays clear when the features are not
/// sufficient; the driver sees that with `GET_STATUS` (virtio 1.3, 3.1.1).
pub(super) fn set_status(
    session: &mut Session,
    request: Request,
    backend: &mut dyn Backend,
) -> Outcome {
    let value: u64 = request.parse()?;
    let Ok(mut status) = u8::try_from(value) else {
        return Err(format!("device status {value:#x} has more than 8 bits").into());
    };
    if status == 0 {
        session.reset(backend);
    } else if session.features_refused().is_some() {
        status &= !FEATURES_OK;
    }
    session.status = status;
    backend.status_changed(status);
    Ok(Answer::Done)
}

/// `GET_STATUS`.
pub(super) fn get_status(session: &mut Session, _: Request, _: &mut dyn Backend) -> Outcome {
    Ok(Answer::u64(session.status.into()))
}
