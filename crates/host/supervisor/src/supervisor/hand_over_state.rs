//! Hand-over in progress.

use std::fmt;
use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use ipc::connections::AdoptedTable;

use super::pair::{Pair, PairRef};
use crate::connection_table::ConnectionTable;
use crate::kind::Kind;

/// Stage of the hand-over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(crate) enum Stage {
    Freezing,
    Preparing,
    Passing,
    Quiescing,
    Restoring,
    TakingOver,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Freezing => "the old control did not freeze",
            Stage::Preparing => "the new processes were not ready",
            Stage::Passing => "the new switch did not prepare the saved sessions",
            Stage::Quiescing => "the old switch did not quiesce",
            Stage::Restoring => "the new switch did not read the saved sessions",
            Stage::TakingOver => "the new switch did not take over",
        })
    }
}

/// Message of a process that completes a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Milestone {
    /// Control has closed the API.
    Frozen,
    /// Everything configured is in place.
    Ready,
    /// The new switch has prepared the saved sessions.
    Prepared,
    /// The switch serves no queue any more.
    Quiesced {
        /// Time at which it released the first one, nanoseconds of the monotonic clock.
        at_ns: u64,
    },
    /// The switch serves all queues.
    Serving {
        /// Time since which it does, nanoseconds of the monotonic clock.
        at_ns: u64,
        /// Number of connections that continue.
        connections: u32,
        /// The table of connections, if there is one.
        table: Option<AdoptedTable>,
    },
}

/// Reason why a hand-over has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandOverError {
    /// A process of the old or the new pair has ended.
    #[error("the {0} {1} ended ({2})")]
    Ended(PairRef, Kind, ExitStatus),
    #[error("{0} in time")]
    Late(Stage),
    #[error("cannot send to a process: {0}")]
    Send(#[from] io::Error),
}

/// Result of a hand-over.
pub(crate) enum HandOverResult {
    /// The new pair serves.
    Done {
        /// Time without a switch in milliseconds.
        gap_ms: f64,
        /// Number of connections that were taken over.
        connections: u32,
        /// The table of connections, if there is one.
        table: Option<AdoptedTable>,
    },
    /// The old version serves.
    Failed(HandOverError),
}

/// Hand-over in progress, with the new pair.
pub(crate) struct HandOver {
    pub(crate) pair: Pair,
    /// A table of connections of the new pair, if that of the old one has another length.
    pub(crate) table: Option<ConnectionTable>,
    pub(crate) stage: Stage,
    pub(crate) deadline: Instant,
    /// All saved sessions were sent once.
    pub(crate) asked_to_prepare: bool,
    /// Time on the monotonic clock when the old switch left its first queue.
    pub(crate) quiesced_at_ns: u64,
    /// The message that ends the stage, if it has come.
    pub(crate) milestone: Option<Milestone>,
}

impl HandOver {
    /// Enters a stage, which must end within this time.
    pub(crate) fn enter(&mut self, stage: Stage, timeout: Duration) {
        self.stage = stage;
        self.deadline = Instant::now() + timeout;
    }
}

/// Hand-over in progress, and the result of the last one.
#[derive(Default)]
pub(crate) struct HandOvers {
    /// Pair that is to replace control and the switch.
    pub(crate) next: Option<HandOver>,
    pub(crate) result: Option<HandOverResult>,
}

impl HandOvers {
    /// Notes a message that completes a stage. One that does not fit the stage is ignored: a faulty
    /// sender runs into the deadline.
    pub(crate) fn note(&mut self, from: PairRef, milestone: Milestone) {
        let Some(next) = &mut self.next else {
            return;
        };
        let fits = matches!(
            (from, next.stage, milestone),
            (PairRef::Serving, Stage::Freezing, Milestone::Frozen)
                | (PairRef::Next, Stage::Preparing, Milestone::Ready)
                | (PairRef::Next, Stage::Passing, Milestone::Prepared)
                | (
                    PairRef::Serving,
                    Stage::Quiescing,
                    Milestone::Quiesced { .. }
                )
                | (PairRef::Next, Stage::TakingOver, Milestone::Serving { .. })
        );
        if fits {
            next.milestone = Some(milestone);
        }
    }

    /// Returns the pair with the switch that owns the sessions and the interfaces.
    pub(crate) fn serving(&self) -> PairRef {
        match self.is_at(Stage::TakingOver) {
            true => PairRef::Next,
            false => PairRef::Serving,
        }
    }

    /// Returns whether the switch of a pair owns the sessions and the interfaces.
    pub(crate) fn is_serving(&self, pair: PairRef) -> bool {
        pair == self.serving()
    }

    /// Returns whether the new switch, and not the serving one, must receive the saved sessions.
    pub(crate) fn next_receives_sessions(&self) -> bool {
        self.is_at(Stage::Passing) || self.is_at(Stage::Restoring)
    }

    /// Returns whether there is a hand-over at this stage.
    pub(crate) fn is_at(&self, stage: Stage) -> bool {
        self.next.as_ref().is_some_and(|next| next.stage == stage)
    }

    /// Returns the deadline of the stage.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next.as_ref().map(|next| next.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::{ControlChild, SwitchChild};

    /// Returns a hand-over at a stage.
    fn at(stage: Stage) -> HandOvers {
        let (control, switch) = (ControlChild::idle().0, SwitchChild::idle().0);
        HandOvers {
            next: Some(HandOver {
                pair: Pair::new(control, switch),
                table: None,
                stage,
                deadline: Instant::now(),
                asked_to_prepare: false,
                quiesced_at_ns: 0,
                milestone: None,
            }),
            result: None,
        }
    }

    fn noted(hand_over: &HandOvers) -> Option<Milestone> {
        hand_over.next.as_ref().and_then(|next| next.milestone)
    }

    #[test]
    fn each_stage_ends_with_one_message_of_one_pair() {
        let (at_ns, connections, table) = (7, 1, None);
        let all = [
            (PairRef::Serving, Stage::Freezing, Milestone::Frozen),
            (PairRef::Next, Stage::Preparing, Milestone::Ready),
            (PairRef::Next, Stage::Passing, Milestone::Prepared),
            (
                PairRef::Serving,
                Stage::Quiescing,
                Milestone::Quiesced { at_ns },
            ),
            (
                PairRef::Next,
                Stage::TakingOver,
                Milestone::Serving {
                    at_ns,
                    connections,
                    table,
                },
            ),
        ];
        let stages = [Stage::Restoring].into_iter();
        for stage in stages.chain(all.map(|(_, stage, _)| stage)) {
            let mut hand_over = at(stage);
            for pair in [PairRef::Serving, PairRef::Next] {
                for (from, ends, milestone) in all {
                    hand_over.note(pair, milestone);
                    let fits = (pair, stage) == (from, ends);
                    assert_eq!(noted(&hand_over), fits.then_some(milestone), "{stage:?}");
                    if let Some(next) = &mut hand_over.next {
                        next.milestone = None;
                    }
                }
            }
        }
        let mut none = HandOvers::default();
        none.note(PairRef::Serving, Milestone::Frozen);
        assert_eq!(noted(&none), None);
    }

    #[test]
    fn the_sessions_are_the_new_switch_s_from_the_take_over() {
        for stage in [
            Stage::Freezing,
            Stage::Passing,
            Stage::Quiescing,
            Stage::Restoring,
        ] {
            let hand_over = at(stage);
            assert!(hand_over.is_serving(PairRef::Serving) && !hand_over.is_serving(PairRef::Next));
        }
        let hand_over = at(Stage::TakingOver);
        assert!(!hand_over.is_serving(PairRef::Serving) && hand_over.is_serving(PairRef::Next));
    }
}
