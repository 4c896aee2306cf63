//! Table of messages: payload and descriptors, legal states, reply and handler of each.

use wire::virtio::features::Features;
use wire::virtio::vhost_user::{IotlbMessage, ProtocolFeatures as P, code};

use super::backend::Backend;
use super::channel;
use super::config::{self, CONFIG_HEAD, MAX_CONFIG};
use super::fault::{Fault, Refusal};
use super::inflight;
use super::iotlb;
use super::message::{MAX_FDS, Message};
use super::queues::messages as queues;
use super::regions;
use super::session::{self, Answer, Request, Session};

/// Number of descriptors of a message. More (or fewer) end the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fds {
    None,
    One,
    /// None or one; the handler knows which.
    UpToOne,
    UpToEight,
}

impl Fds {
    fn allows(self, count: usize) -> bool {
        match self {
            Fds::None => count == 0,
            Fds::One => count == 1,
            Fds::UpToOne => count <= 1,
            Fds::UpToEight => count <= MAX_FDS,
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Fds::None => "none",
            Fds::One => "exactly 1",
            Fds::UpToOne => "0 or 1",
            Fds::UpToEight => "up to 8",
        }
    }
}

/// Size of a message's payload in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Exact(usize),
    /// One structure, with or without the padding behind it.
    Either(usize, usize),
    /// 8 bytes and up to 8 regions of 32.
    Regions,
    /// 12 bytes and up to 256 of configuration.
    Config,
    /// Messages that are refused whatever they carry.
    Any,
}

impl Size {
    fn allows(self, size: usize) -> bool {
        match self {
            Size::Exact(n) => size == n,
            Size::Either(a, b) => size == a || size == b,
            Size::Regions => (8..=8 + 32 * MAX_FDS).contains(&size) && size % 32 == 8,
            Size::Config => (CONFIG_HEAD..=CONFIG_HEAD + MAX_CONFIG).contains(&size),
            Size::Any => true,
        }
    }

    fn expected(self) -> String {
        match self {
            Size::Exact(n) => n.to_string(),
            Size::Either(a, b) => format!("{a} or {b}"),
            Size::Regions => "8 and 32 for each of up to 8 regions".into(),
            Size::Config => "12 and up to 256".into(),
            Size::Any => "any".into(),
        }
    }
}

/// States that allow a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Legal {
    Always,
    /// After this protocol feature is negotiated.
    Protocol(P),
    /// After that one is, and `SET_FEATURES` has come.
    ProtocolAndFeatures(P),
    /// After this virtio feature is negotiated.
    Feature(Features),
    /// Never, because it is not offered; with the reason.
    Never(&'static str),
}

/// Kind of reply. Every message is acknowledged on demand (`REPLY_ACK` and the flag in its header),
/// so there is none without any reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// A payload of its own.
    Always,
    /// An acknowledgement, when the front end requests one.
    OnDemand,
}

type Handler = fn(&mut Session, Request, &mut dyn Backend) -> Result<Answer, Refusal>;

/// Rules and handler of a message.
pub(super) struct Row {
    pub(super) code: u32,
    pub(super) name: &'static str,
    pub(super) fds: Fds,
    pub(super) size: Size,
    pub(super) legal: Legal,
    pub(super) reply: ReplyKind,
    pub(super) handler: Handler,
}

impl Row {
    pub(super) fn check_fds(&self, got: usize) -> Result<(), Fault> {
        if self.fds.allows(got) {
            return Ok(());
        }
        Err(self.wrong_fds(got))
    }

    pub(super) fn wrong_fds(&self, got: usize) -> Fault {
        Fault::WrongFds {
            name: self.name,
            got,
            expected: self.fds.expected(),
        }
    }

    pub(super) fn check_size(&self, got: usize) -> Result<(), Fault> {
        if self.size.allows(got) {
            return Ok(());
        }
        Err(Fault::WrongSize {
            name: self.name,
            got,
            expected: self.size.expected(),
        })
    }
}

/// Returns the row of a message, `None` when no such message exists.
pub(super) fn find(code: u32) -> Option<&'static Row> {
    let at = usize::try_from(code).ok()?.checked_sub(1)?;
    TABLE.get(at)
}

/// Returns whether the message cannot have descriptors, by its row and by its payload.
pub(super) fn has_no_fds(message: &Message) -> bool {
    let says_none = || {
        let value: Option<[u8; 8]> = message.payload.as_slice().try_into().ok();
        value.is_some_and(|value| u64::from_ne_bytes(value) & queues::NO_FD != 0)
    };
    match message.code {
        code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => says_none(),
        // Only old front ends send one, and it is unused.
        code::REM_MEM_REG => true,
        other => find(other).is_none_or(|row| row.fds == Fds::None),
    }
}

/// The row of a message.
macro_rules! row {
    ($name:ident, $fds:expr, $size:expr, $legal:expr, $reply:expr, $handler:expr) => {
        Row {
            code: code::$name,
            name: stringify!($name),
            fds: $fds,
            size: $size,
            legal: $legal,
            reply: $reply,
            handler: $handler,
        }
    };
}

/// The row of a message that the specification has and this back end does not offer.
macro_rules! never {
    ($name:ident, $fds:expr, $why:expr) => {
        row!(
            $name,
            $fds,
            Size::Any,
            Legal::Never($why),
            ReplyKind::OnDemand,
            session::not_offered
        )
    };
}

const NO_ENDIAN: &str =
    "rings of legacy guests are little-endian, and no choice is offered (CROSS_ENDIAN)";
const NO_CRYPTO: &str = "this is a network device";
const NO_POSTCOPY: &str = "postcopy migration is not offered (PAGEFAULT)";
const NO_INBAND: &str = "in-band notifications are not offered (INBAND_NOTIFICATIONS)";
const NO_OBJECTS: &str = "shared objects are not offered (SHARED_OBJECT)";
const NO_STATE: &str = "device state transfer is not offered (DEVICE_STATE)";
const NO_SHMEM: &str = "shared memory regions are not offered (SHMEM)";

/// All messages of the front end, by code.
#[rustfmt::skip]
pub(super) static TABLE: [Row; 44] = {
    use ReplyKind::{Always as Answer, OnDemand};
    use Fds::{None, One, UpToEight, UpToOne};
    use Legal::{Always, Feature, Protocol, ProtocolAndFeatures};
    use Size::{Config, Either, Exact, Regions};
    [
        row!(GET_FEATURES, None, Exact(0), Always, Answer, session::get_features),
        row!(SET_FEATURES, None, Exact(8), Always, OnDemand, session::set_features),
        row!(SET_OWNER, None, Exact(0), Always, OnDemand, session::nothing),
        row!(RESET_OWNER, None, Exact(0), Always, OnDemand, session::nothing),
        row!(SET_MEM_TABLE, UpToEight, Regions, Always, OnDemand, regions::set_table),
        row!(SET_LOG_BASE, One, Exact(16), Protocol(P::LOG_SHMFD), Answer, regions::set_log_base),
        row!(SET_LOG_FD, One, Exact(0), Always, OnDemand, regions::set_log_fd),
        row!(SET_VRING_NUM, None, Exact(8), Always, OnDemand, queues::set_num),
        row!(SET_VRING_ADDR, None, Exact(40), Always, OnDemand, queues::set_addr),
        row!(SET_VRING_BASE, None, Exact(8), Always, OnDemand, queues::set_base),
        row!(GET_VRING_BASE, None, Exact(8), Always, Answer, queues::get_base),
        row!(SET_VRING_KICK, UpToOne, Exact(8), Always, OnDemand, queues::set_kick),
        row!(SET_VRING_CALL, UpToOne, Exact(8), Always, OnDemand, queues::set_call),
        row!(SET_VRING_ERR, UpToOne, Exact(8), Always, OnDemand, queues::set_err),
        row!(GET_PROTOCOL_FEATURES, None, Exact(0), Always, Answer, session::get_protocol_features),
        row!(SET_PROTOCOL_FEATURES, None, Exact(8), Always, OnDemand, session::set_protocol_features),
        row!(GET_QUEUE_NUM, None, Exact(0), Always, Answer, session::get_queue_num),
        row!(SET_VRING_ENABLE, None, Exact(8), Always, OnDemand, queues::set_enable),
        row!(SEND_RARP, None, Exact(8), Protocol(P::RARP), OnDemand, session::send_rarp),
        row!(NET_SET_MTU, None, Exact(8), Protocol(P::NET_MTU), OnDemand, session::set_mtu),
        row!(SET_BACKEND_REQ_FD, One, Exact(0), Protocol(P::BACKEND_REQ), OnDemand, channel::set_backend_req_fd),
        row!(IOTLB_MSG, None, Exact(IotlbMessage::LEN), Feature(Features::ACCESS_PLATFORM), Answer, iotlb::message),
        never!(SET_VRING_ENDIAN, None, NO_ENDIAN),
        row!(GET_CONFIG, None, Config, Protocol(P::CONFIG), Answer, config::get_config),
        row!(SET_CONFIG, None, Config, Protocol(P::CONFIG), OnDemand, config::set_config),
        never!(CREATE_CRYPTO_SESSION, None, NO_CRYPTO),
        never!(CLOSE_CRYPTO_SESSION, None, NO_CRYPTO),
        never!(POSTCOPY_ADVISE, None, NO_POSTCOPY),
        never!(POSTCOPY_LISTEN, None, NO_POSTCOPY),
        never!(POSTCOPY_END, None, NO_POSTCOPY),
        row!(GET_INFLIGHT_FD, None, Either(20, 24), ProtocolAndFeatures(P::INFLIGHT_SHMFD), Answer, inflight::get_inflight),
        row!(SET_INFLIGHT_FD, One, Either(20, 24), ProtocolAndFeatures(P::INFLIGHT_SHMFD), OnDemand, inflight::set_inflight),
        never!(GPU_SET_SOCKET, One, "this is a network device"),
        row!(RESET_DEVICE, None, Exact(0), Protocol(P::RESET_DEVICE), OnDemand, session::reset_device),
        never!(VRING_KICK, None, NO_INBAND),
        row!(GET_MAX_MEM_SLOTS, None, Exact(0), Protocol(P::CONFIGURE_MEM_SLOTS), Answer, regions::get_max_slots),
        row!(ADD_MEM_REG, UpToOne, Exact(40), Protocol(P::CONFIGURE_MEM_SLOTS), OnDemand, regions::add_region),
        row!(REM_MEM_REG, UpToOne, Exact(40), Protocol(P::CONFIGURE_MEM_SLOTS), OnDemand, regions::remove_region),
        row!(SET_STATUS, None, Exact(8), Protocol(P::STATUS), OnDemand, session::set_status),
        row!(GET_STATUS, None, Exact(0), Protocol(P::STATUS), Answer, session::get_status),
        never!(GET_SHARED_OBJECT, None, NO_OBJECTS),
        never!(SET_DEVICE_STATE_FD, One, NO_STATE),
        never!(CHECK_DEVICE_STATE, None, NO_STATE),
        never!(GET_SHMEM_CONFIG, None, NO_SHMEM),
    ]
};

/// `find` indexes by code, so the rows must lie in the order of their codes.
const _: () = {
    let mut at = 0;
    while at < TABLE.len() {
        assert!(TABLE[at].code as usize == at + 1);
        at += 1;
    }
};
