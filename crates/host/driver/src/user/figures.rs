//! Figures of a worker.

use ipc::driving::DriverCounters;
use ipc::user_reports::{USER_RESOLVERS, UserOutcome, UserResolver, UserTotals, UserWay};
use usernet::network::Refusal;
use usernet::services::dns::{Outcome, RESOLVERS_MAX, Resolver, ResolverState};
use usernet::{Failure, Nanos};

const _: () = assert!(USER_RESOLVERS == RESOLVERS_MAX);

/// Counters of a worker.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) frames: DriverCounters,
    /// Bound of flows, which the process cannot ask for any more.
    pub(super) flows_max: u32,
    pub(super) totals: UserTotals,
}

impl Counters {
    /// A frame or a connection is refused.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.frames.rejected_by_interface += 1;
        let at = Refusal::ALL.iter().position(|of| *of == refusal);
        if let Some(count) = at.and_then(|at| self.totals.refused.get_mut(at)) {
            *count += 1;
        }
    }

    /// A connection is established, or a mapping opened.
    pub(super) fn established(&mut self) {
        self.totals.results[0] += 1;
    }

    /// The socket of a connection failed before it was established.
    pub(super) fn failed(&mut self, failure: Failure) {
        match failure.refusal() {
            None => self.totals.results[1] += 1,
            Some(refusal) => {
                self.totals.results[2] += 1;
                self.refuse(refusal);
            }
        }
    }
}

/// Returns the resolvers as they are reported.
pub(super) fn resolvers(all: &[Resolver], now: Nanos) -> [Option<UserResolver>; USER_RESOLVERS] {
    let way = |of: &ResolverState| UserWay {
        outcome: outcome(of.last),
        is_last: of.is_last(now),
    };
    std::array::from_fn(|at| {
        let of = all.get(at)?;
        Some(UserResolver {
            address: of.address,
            udp: way(&of.udp),
            tcp: way(&of.tcp),
        })
    })
}

fn outcome(of: Outcome) -> UserOutcome {
    match of {
        Outcome::NotAsked => UserOutcome::NotAsked,
        Outcome::Answered => UserOutcome::Answered,
        Outcome::Error(code) => UserOutcome::Error(code),
        Outcome::Lame => UserOutcome::Lame,
        Outcome::Nonsense => UserOutcome::Nonsense,
        Outcome::Closed => UserOutcome::Closed,
        Outcome::Unreachable => UserOutcome::Unreachable,
        Outcome::Silent => UserOutcome::Silent,
    }
}
