//! Results of all kills: a row for each process and route.

use serde::Serialize;

use super::Victim;
use super::traffic::{Interface, Route};
use super::trial::{Seen, Trial};
use crate::Plan;
use e2e::machine::Machine;
use e2e::statistics::percentile;
use e2e::table::table;

const MEANING: &str = "Gap: the longest time without a frame in one direction, from the kill until \
    all was as before. Lost: sent, \
    less received and all that the route's ports dropped by name in the time, noise of others \
    included, which can hide as many; a frame that is delivered again by the new process counts \
    once, and as twice. A new \
    supervisor counts drops from nothing: what the old one's switch dropped after the traffic \
    began would count as lost.";

/// All that is reported.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    machine: Machine,
    quick: bool,
    notes: Vec<String>,
    trials: Vec<Trial>,
}

impl Outcome {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            machine: plan.machine.clone(),
            quick: plan.quick,
            notes: Vec::new(),
            trials: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    pub(super) fn add(&mut self, trial: Trial) {
        self.trials.push(trial);
    }

    /// The tables for people.
    pub(super) fn markdown(&self) -> String {
        let notes: Vec<String> = self
            .notes
            .iter()
            .map(|note| format!("\nNote: {note}.\n"))
            .collect();
        let damaged: u64 = self.trials.iter().map(|trial| trial.damaged).sum();
        format!(
            "\n## Faults\n\n{}\n{MEANING} {damaged} frames arrived damaged.\n\n{}{}",
            self.traffic(),
            self.processes(),
            notes.concat(),
        )
    }

    fn of(&self, victim: Victim) -> impl Iterator<Item = &Trial> {
        self.trials
            .iter()
            .filter(move |trial| trial.victim == victim)
    }

    fn traffic(&self) -> String {
        let head = [
            "killed",
            "traffic",
            "kills",
            "gap p50, ms",
            "p99",
            "max",
            "lost",
            "most in one kill",
            "sent",
            "dropped by name",
            "twice",
        ];
        let routes = Route::ALL;
        let mut rows: Vec<Vec<String>> = routes
            .iter()
            .filter_map(|&route| self.before(route))
            .collect();
        for victim in Victim::ALL {
            rows.extend(
                routes
                    .iter()
                    .filter_map(|&route| self.around(victim, route)),
            );
        }
        table(&head.map(str::to_owned), &rows)
    }

    /// The time before all kills, for comparison.
    fn before(&self, route: Route) -> Option<Vec<String>> {
        let seen = self
            .trials
            .iter()
            .filter_map(|trial| of_route(trial, route));
        let gaps: Vec<f64> = seen.map(|seen| seen.gap_before_ms).collect();
        let mut row = vec!["none".to_owned(), name(route).to_owned(), "-".to_owned()];
        row.extend(quantiles(&gaps)?);
        row.extend(std::iter::repeat_n("-".to_owned(), 5));
        Some(row)
    }

    fn around(&self, victim: Victim, route: Route) -> Option<Vec<String>> {
        let seen: Vec<&Seen> = self
            .of(victim)
            .filter_map(|trial| of_route(trial, route))
            .collect();
        let gaps: Vec<f64> = seen.iter().map(|seen| seen.gap_ms).collect();
        let sum = |of: fn(&Seen) -> u64| seen.iter().map(|seen| of(seen)).sum::<u64>();
        let mut row = vec![
            victim.name().to_owned(),
            name(route).to_owned(),
            seen.len().to_string(),
        ];
        row.extend(quantiles(&gaps)?);
        let worst = seen
            .iter()
            .map(|seen| seen.lost())
            .max()
            .unwrap_or_default();
        let counts = [
            sum(Seen::lost),
            worst,
            sum(|seen| seen.sent),
            sum(|seen| seen.dropped),
            sum(|seen| seen.twice),
        ];
        row.extend(counts.map(|count| count.to_string()));
        Some(row)
    }

    fn processes(&self) -> String {
        let head = [
            "killed",
            "API answers again p50, ms",
            "p99",
            "max",
            "shows the new process p50, ms",
            "p99",
            "max",
            "guests dialled again, most of 4",
            "guests affected, most",
        ];
        let row = |victim: &Victim| {
            let trials = || self.of(*victim);
            let answered: Vec<f64> = trials().map(|trial| trial.api_ms).collect();
            let replaced: Vec<f64> = trials().map(|trial| trial.replaced_ms).collect();
            let most =
                |of: fn(&Trial) -> usize| trials().map(of).max().unwrap_or_default().to_string();
            let mut row = vec![victim.name().to_owned()];
            row.extend(quantiles(&answered)?);
            row.extend(quantiles(&replaced)?);
            row.extend([most(|trial| trial.redialled), most(|trial| trial.affected)]);
            Some(row)
        };
        let rows: Vec<Vec<String>> = Victim::ALL.iter().filter_map(row).collect();
        table(&head.map(str::to_owned), &rows)
    }
}

fn name(route: Route) -> &'static str {
    match route {
        Route::Pair => "guest to guest",
        Route::Host(Interface::Tap) => "guest to host, TAP",
        Route::Host(Interface::Packet) => "guest to host, packet socket",
    }
}

fn of_route(trial: &Trial, route: Route) -> Option<&Seen> {
    match route {
        Route::Pair => Some(&trial.pair),
        Route::Host(Interface::Tap) => trial.tap.as_ref(),
        Route::Host(Interface::Packet) => trial.packet.as_ref(),
    }
}

/// Median, 99th percentile and maximum; None without values.
fn quantiles(values: &[f64]) -> Option<[String; 3]> {
    let shown = |share| Some(format!("{:.2}", percentile(values, share)?));
    Some([shown(0.5)?, shown(0.99)?, shown(1.0)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(victim: Victim, gap_ms: f64, lost: u64) -> Trial {
        let seen = Seen {
            gap_before_ms: 0.25,
            gap_ms,
            sent: 1000,
            received: 997 - lost,
            twice: 2,
            dropped: 3,
            left_out: 0,
        };
        Trial {
            victim,
            api_ms: 2.0 * gap_ms,
            replaced_ms: 3.0 * gap_ms,
            pair: seen.clone(),
            tap: None,
            packet: None,
            redialled: 0,
            affected: 2,
            damaged: 0,
        }
    }

    fn outcome(trials: Vec<Trial>) -> Outcome {
        Outcome {
            machine: Machine::here(),
            quick: true,
            notes: vec!["without a TAP port".to_owned()],
            trials,
        }
    }

    #[test]
    fn rows_are_of_one_process_and_one_route() {
        let all = outcome(vec![
            trial(Victim::Switch, 4.0, 1),
            trial(Victim::Control, 0.5, 0),
            trial(Victim::Switch, 6.0, 5),
        ]);
        let text = all.markdown();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
        let expected = [
            "| none | guest to guest | - | 0.25 | 0.25 | 0.25 | - | - | - | - | - |",
            "| control | guest to guest | 1 | 0.50 | 0.50 | 0.50 | 0 | 0 | 1000 | 3 | 2 |",
            "| switch | guest to guest | 2 | 4.00 | 6.00 | 6.00 | 6 | 5 | 2000 | 6 | 4 |",
        ];
        assert_eq!(lines[1..4], expected);
        assert!(
            lines.contains(&"| switch | 8.00 | 12.00 | 12.00 | 12.00 | 18.00 | 18.00 | 0 | 2 |")
        );
        assert!(!text.contains("driver |"), "it was not killed: {text}");
        assert!(text.contains("Note: without a TAP port."));
    }

    #[test]
    fn drops_with_a_name_are_not_lost_and_nothing_is_less_than_nothing() {
        let mut seen = trial(Victim::Driver, 1.0, 4).pair;
        assert_eq!(seen.lost(), 4);
        seen.dropped = 8;
        assert_eq!(seen.lost(), 0);
    }

    #[test]
    fn every_kill_is_in_the_document() {
        let document = serde_json::to_value(outcome(vec![trial(Victim::Supervisor, 7.5, 0)]));
        let document = document.expect("a document");
        assert_eq!(document["trials"][0]["victim"], "supervisor");
        assert_eq!(document["trials"][0]["pair"]["gap_ms"], 7.5);
    }
}
