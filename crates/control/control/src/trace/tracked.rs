//! The connection of a traced frame.

use std::time::Duration;

use conntrack::packet::Exemption;
use conntrack::table::Connection;
use conntrack::{Judgement, Millis, Settings, TcpState};
use port::PortId;
use wire::flow::{Ct, CtState, FlowKey};

use super::words::time;

/// The connection of a frame in a tracked segment.
#[derive(Clone, Debug)]
pub(crate) enum FrameConnection {
    /// The frame has none, whatever is known.
    Untracked(Exemption),
    /// It is a later fragment, which has the state of the first one: that is not looked up.
    LaterFragment,
    /// There is no table to look it up in.
    NoTable,
    /// It was looked up.
    Judged(Judgement, Option<KnownConnection>),
}

/// A known connection, in words.
#[derive(Clone, Debug)]
pub(crate) struct KnownConnection {
    text: String,
    mark: u8,
    is_bound: bool,
}

impl KnownConnection {
    /// Describes a connection that was let in by a rule of a list.
    pub(crate) fn new(
        of: &Connection,
        rule: Option<&(String, String)>,
        (settings, now): (&Settings, Millis),
    ) -> Self {
        let millis = |ms: Millis| time(Duration::from_millis(ms.into()));
        let state = match of.progress.tcp() {
            TcpState::None if of.progress.is_replied() => "answered",
            TcpState::None => "not answered",
            tcp => tcp.name(),
        };
        let age = now.wrapping_sub(of.opened);
        let age = if age > Millis::MAX / 2 { 0 } else { age };
        let rule = rule.map(|(list, rule)| format!(" by rule {rule} of list {list}"));
        let left = of.remaining(settings, now).unwrap_or_default();
        Self {
            text: format!(
                "{state}{}, let in{} {} ago, forgotten in {} without a frame",
                if of.progress.is_denied() {
                    ", denied since"
                } else {
                    ""
                },
                rule.unwrap_or_default(),
                millis(age),
                millis(left)
            ),
            mark: of.mark() as u8,
            is_bound: of.far().is_some(),
        }
    }
}

impl FrameConnection {
    /// Returns a frame's key with the state of its connection.
    pub(crate) fn key(&self, key: FlowKey) -> FlowKey {
        let Self::Judged(judgement, known) = self else {
            return key;
        };
        let mut state = judgement.state();
        let (mark, is_bound) = known
            .as_ref()
            .map_or((0, true), |known| (known.mark, known.is_bound));
        if state.contains(CtState::ESTABLISHED) && !is_bound {
            state |= CtState::MOVED;
        }
        let mark = if state.intersects(CtState::ESTABLISHED | CtState::RELATED) {
            mark
        } else {
            0
        };
        key.with_ct(Ct::new(state, mark))
    }

    /// Returns the port that the frames of its direction go to, if its connection has one.
    pub(crate) fn far(&self) -> Option<PortId> {
        match self {
            Self::Judged(Judgement::Known { connection, .. }, _)
            | Self::Judged(Judgement::Related(connection), _) => {
                connection.far.map(|port| PortId(port.into()))
            }
            _ => None,
        }
    }

    /// Describes its known connection.
    pub(super) fn known(&self) -> Option<&str> {
        match self {
            Self::Judged(_, Some(known)) => Some(&known.text),
            _ => None,
        }
    }

    /// Returns why the frame has no connection, or is invalid; a clause.
    pub(super) fn why(&self) -> Option<&'static str> {
        match self {
            Self::Untracked(why) => Some(why.text()),
            Self::LaterFragment => Some(
                "it is a later fragment: it has the state of the first one, unless that is late",
            ),
            Self::NoTable => Some("there is no table of connections"),
            Self::Judged(Judgement::Invalid(why), _) => Some(why.text()),
            Self::Judged(..) => None,
        }
    }

    /// Returns whether the frame ends its connection.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Judged(Judgement::Known { refused: true, .. }, _)
        )
    }
}
