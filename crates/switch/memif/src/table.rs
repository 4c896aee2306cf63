//! The rules of each message: descriptors, states, and the handler.

use sys::foreign::ForeignFd;
use virtio::vhost_user::{Backend, Fault, Reply};

use crate::message::code;
use crate::session::{self, Session, Stage};
use crate::{regions, rings};

/// States in which a message is legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Legal {
    /// In each.
    Always,
    /// In this one alone.
    In(Stage),
    /// Never, with the reason.
    Never(&'static str),
}

/// A message that passed its row's checks.
pub(crate) struct Request {
    pub(crate) payload: Vec<u8>,
    /// The descriptor of a message that has one.
    pub(crate) fd: Option<ForeignFd>,
}

/// Reason why a message is refused, which ends the connection.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl<T: Into<String>> From<T> for Refusal {
    fn from(reason: T) -> Self {
        Self(reason.into())
    }
}

/// The effect of a message.
#[derive(Debug)]
pub(crate) enum Answer {
    Reply(Reply),
    /// The client ends the connection, with its reason.
    Left(String),
}

pub(crate) type Outcome = Result<Answer, Refusal>;

type Handler = fn(&mut Session, Request, &mut dyn Backend) -> Outcome;

/// Rules and handler of a message.
pub(crate) struct Row {
    pub(crate) code: u32,
    pub(crate) name: &'static str,
    /// Number of descriptors: none or one.
    pub(crate) fds: usize,
    pub(crate) legal: Legal,
    pub(crate) handler: Handler,
}

impl Row {
    pub(crate) fn check_fds(&self, got: usize) -> Result<(), Fault> {
        if got == self.fds {
            return Ok(());
        }
        Err(Fault::WrongFds {
            name: self.name,
            got,
            expected: if self.fds == 0 { "none" } else { "1" },
        })
    }
}

/// Returns the row of a message, `None` when no such message exists.
pub(crate) fn find(code: u32) -> Option<&'static Row> {
    let at = usize::try_from(code).ok()?.checked_sub(1)?;
    TABLE.get(at)
}

/// The row of a message.
macro_rules! row {
    ($name:ident, $fds:expr, $legal:expr, $handler:expr) => {
        Row {
            code: code::$name,
            name: stringify!($name),
            fds: $fds,
            legal: $legal,
            handler: $handler,
        }
    };
}

const OF_SERVER: Legal = Legal::Never("only the server sends it");

/// All messages, by code.
#[rustfmt::skip]
pub(crate) static TABLE: [Row; 8] = {
    use Legal::{Always, In, Never};
    [
        row!(ACK, 0, Never("nothing was sent that a client acknowledges"), session::never),
        row!(HELLO, 0, OF_SERVER, session::never),
        row!(INIT, 0, In(Stage::Greeted), session::init),
        row!(ADD_REGION, 1, In(Stage::Initialised), regions::add_region),
        row!(ADD_RING, 1, In(Stage::Initialised), rings::add_ring),
        row!(CONNECT, 0, In(Stage::Initialised), session::connect),
        row!(CONNECTED, 0, OF_SERVER, session::never),
        row!(DISCONNECT, 0, Always, session::disconnect),
    ]
};

/// `find` indexes by code, so the rows have to lie in the order of their codes.
const _: () = {
    let mut at = 0;
    while at < TABLE.len() {
        assert!(TABLE[at].code as usize == at + 1);
        at += 1;
    }
};
