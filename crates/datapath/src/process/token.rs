//! The epoll tokens of the session thread.

use port::PortId;
use rustix::event::epoll::EventData;

/// The meaning of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Supervisor,
    Control,
    Notices,
    Listener(PortId),
    Connection(PortId),
}

impl Token {
    pub(super) fn encode(self) -> EventData {
        EventData::new_u64(match self {
            Token::Supervisor => 0,
            Token::Control => 1,
            Token::Notices => 2,
            Token::Listener(id) => 3 | u64::from(id.0) << 8,
            Token::Connection(id) => 4 | u64::from(id.0) << 8,
        })
    }

    pub(super) fn decode(data: EventData) -> Self {
        let id = PortId((data.u64() >> 8) as u32);
        match data.u64() & 0xff {
            0 => Token::Supervisor,
            1 => Token::Control,
            2 => Token::Notices,
            3 => Token::Listener(id),
            _ => Token::Connection(id),
        }
    }
}
