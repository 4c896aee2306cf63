//! Figures of user ports, which their driver processes report.

use api::v1::{UserFlowCount, UserPortStatus};
use channel::user_reports::{USER_REFUSALS, USER_RESULTS, USER_STATES, UserFigures};
use port::counters::PortCounts;

/// Returns the figures for the status of a port.
pub(super) fn status_of(of: &UserFigures) -> UserPortStatus {
    let states = USER_STATES.iter().zip(of.flows);
    let states = states.map(|((protocol, state), flows)| UserFlowCount {
        protocol: (*protocol).to_owned(),
        state: (*state).to_owned(),
        flows,
    });
    let results = USER_RESULTS.iter().zip(of.totals.results);
    let refused = USER_REFUSALS.iter().zip(of.totals.refused);
    UserPortStatus {
        flows: of.all_flows(),
        flows_max: of.flows_max,
        kept: of.kept,
        kept_max: of.kept_max,
        states: states.collect(),
        results: results
            .map(|(result, flows)| ((*result).to_owned(), flows))
            .collect(),
        refused: refused
            .map(|(reason, count)| (reason.name().to_owned(), count))
            .collect(),
        from_guests_bytes: of.totals.from_guests,
        to_guests_bytes: of.totals.to_guests,
        dns_questions: of.totals.dns_questions,
    }
}

/// Adds what the driver of a user port has refused to the drops that the switch has counted.
pub(super) fn add_refused(counts: &mut PortCounts, of: &UserPortStatus) {
    for reason in USER_REFUSALS {
        let refused = of.refused.get(reason.name()).copied().unwrap_or_default();
        let at = reason as usize;
        if counts.drops.len() <= at {
            counts.drops.resize(at + 1, 0);
        }
        counts.drops[at] = counts.drops[at].saturating_add(refused);
    }
}

#[cfg(test)]
mod tests {
    use channel::user_reports::UserTotals;
    use port::DropReason;

    use super::*;

    #[test]
    fn refusals_of_the_driver_are_drops_of_its_port() {
        let figures = UserFigures {
            flows: [1, 2, 0, 0, 4],
            totals: UserTotals {
                refused: [5, 0, 0, 0, 6],
                ..UserTotals::default()
            },
            ..UserFigures::default()
        };
        let status = status_of(&figures);
        assert_eq!((status.flows, status.refused["user-denied"]), (7, 5));
        let mut counts = PortCounts::default();
        add_refused(&mut counts, &status);
        add_refused(&mut counts, &status);
        assert_eq!(counts.dropped(DropReason::UserDenied), 10);
        assert_eq!(counts.dropped(DropReason::UserUnreachable), 12);
        assert_eq!(counts.dropped(DropReason::UserFlows), 0);
    }
}
