//! What there is to know of a port's vhost-user side.

use std::collections::BTreeMap;
use std::time::Instant;

use channel::figures::QueueCounts;
use channel::switching::{FrontEnds, PortPhase, PortState, QueueState, Role};

use super::{Attachment, bare};

impl Attachment {
    /// Where the port is in its life.
    #[must_use]
    pub fn phase(&self) -> PortPhase {
        let Some(open) = &self.open else {
            return match self.config.role {
                Role::Server => PortPhase::Waiting,
                Role::Client => PortPhase::Dialing,
            };
        };
        let queues = open.session.info().queues;
        if queues.iter().any(|q| q.fault.is_some()) {
            PortPhase::Faulted
        } else if queues.iter().any(|q| q.running && q.enabled) {
            PortPhase::Up
        } else {
            PortPhase::Connected
        }
    }

    /// The phase, if it is another than at the last call.
    pub fn phase_change(&mut self) -> Option<PortPhase> {
        let phase = self.phase();
        (std::mem::replace(&mut self.phase, phase) != phase).then_some(phase)
    }

    /// Everything for `status`.
    #[must_use]
    pub fn state(&self, counts: &BTreeMap<u16, QueueCounts>) -> PortState {
        let info = self.open.as_ref().map(|open| open.session.info());
        let queues = info.iter().flat_map(|i| &i.queues);
        PortState {
            config: self.config.clone(),
            phase: self.phase(),
            reason: self.reason(),
            features: info
                .as_ref()
                .and_then(|i| i.features)
                .map_or(0, |f| f.bits()),
            protocol_features: info
                .as_ref()
                .and_then(|i| i.protocol)
                .map_or(0, |f| f.bits()),
            memory: info.as_ref().map_or(0, |i| i.memory_bytes),
            queues: queues
                .filter(|q| q.running || q.fault.is_some())
                .map(|q| QueueState {
                    index: q.index,
                    size: q.size,
                    enabled: q.enabled,
                    fault: q.fault.clone(),
                    counts: counts.get(&q.index).cloned().unwrap_or_default(),
                })
                .collect(),
            connections: self.connections,
            front_ends: FrontEnds {
                turned_away: self.turned_away.count(),
                turned_away_ms_ago: self.turned_away.ms_ago(),
                last_stranger: self.strangers.last(),
                refusals: self.refusals + info.map_or(0, |i| i.refusals),
                pauses: self.pauses.count,
                pause_ms: self.pauses.left(Instant::now()).as_millis() as u64,
                lines_left_out: self.bounds.lines_left_out(),
            },
        }
    }

    /// What is wrong now, or why the last connection ended, or else that others dial beside the one that is open.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let now = self.fault().or_else(|| self.earlier.clone());
        now.or_else(|| self.turned_away.words())
    }

    /// What is wrong with the connection that is open, or was with the last one.
    fn fault(&self) -> Option<String> {
        let open = self.open.as_ref();
        if open.is_some_and(|open| open.bare.is(Instant::now())) {
            return Some(bare::WORDS.to_owned());
        }
        self.lasting_fault()
    }

    /// As [`Self::fault`], but for what is over with the connection.
    pub(super) fn lasting_fault(&self) -> Option<String> {
        let queues = self.open.iter().flat_map(|open| open.session.info().queues);
        let stopped = queues.filter_map(|q| {
            let fault = q.fault?;
            Some(format!("queue {} stopped: {fault}", q.index))
        });
        stopped.take(1).next().or_else(|| self.reason.clone())
    }
}
