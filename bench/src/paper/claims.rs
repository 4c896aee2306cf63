//! Shapes that a paper claims for its figures, asked of curves that were measured here.

use std::fmt;

use crate::plot::{Curve, Point};

/// A shape. Curves are named as their series are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Claim {
    /// One is above the other at each place that both have.
    Order {
        above: &'static str,
        below: &'static str,
    },
    /// The geometric mean of the quotients of both is between these.
    RatioWithin {
        of: &'static str,
        to: &'static str,
        least: f64,
        most: f64,
    },
    /// From place to place it grows.
    Rises { series: &'static str },
    /// At its last place it is below its first.
    Falls { series: &'static str },
    /// From this place on it differs from its value there by this share at most.
    FlatAfter {
        series: &'static str,
        x: f64,
        share: f64,
    },
    /// One is above the other at the first place and below it at the last.
    Crosses {
        first: &'static str,
        second: &'static str,
    },
}

/// A claim, and the cores of a machine on which it can be asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Asking {
    pub(crate) claim: Claim,
    pub(crate) cores: usize,
}

impl Asking {
    /// Asks it of curves that were measured on a machine with so many cores.
    pub(crate) fn ask(&self, curves: &[Curve], cores: usize) -> Verdict {
        if cores < self.cores {
            return Verdict::NotAsked(format!("needs {} cores", self.cores));
        }
        self.claim.ask(curves)
    }
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Holds,
    /// With what was seen.
    DoesNot(String),
    NotAsked(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => write!(f, "holds"),
            Self::DoesNot(seen) => write!(f, "does not: {seen}"),
            Self::NotAsked(reason) => write!(f, "not asked here: {reason}"),
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order { above, below } => write!(f, "{above} is above {below}"),
            Self::RatioWithin {
                of,
                to,
                least,
                most,
            } => write!(f, "{of} has {least}x to {most}x of {to}"),
            Self::Rises { series } => write!(f, "{series} rises"),
            Self::Falls { series } => write!(f, "{series} falls"),
            Self::FlatAfter { series, x, .. } => write!(f, "{series} is flat from {x} on"),
            Self::Crosses { first, second } => {
                write!(f, "{first} is above {second} first and below it last")
            }
        }
    }
}

impl Claim {
    /// Asks it of these curves.
    pub(crate) fn ask(&self, curves: &[Curve]) -> Verdict {
        self.asked(curves).unwrap_or_else(Verdict::NotAsked)
    }

    fn asked(&self, curves: &[Curve]) -> Result<Verdict, String> {
        Ok(match *self {
            Self::Order { above, below } => {
                let pairs = pairs(curves, above, below)?;
                let against = pairs.iter().find(|(_, above, below)| above <= below);
                verdict(against.map(|(x, above, below)| format!("{above:.2}, {below:.2} at {x}")))
            }
            Self::RatioWithin {
                of,
                to,
                least,
                most,
            } => {
                let pairs = pairs(curves, of, to)?;
                let logs = pairs.iter().map(|(_, of, to)| (of / to).ln());
                let mean = (logs.sum::<f64>() / pairs.len() as f64).exp();
                let outside = !(least..=most).contains(&mean);
                verdict(outside.then(|| format!("{mean:.2}x")))
            }
            Self::Rises { series } => {
                let points = several(curves, series)?;
                let falls = points.windows(2).find(|pair| pair[1].y <= pair[0].y);
                verdict(falls.map(|pair| seen(pair[0], pair[1])))
            }
            Self::Falls { series } => {
                let points = several(curves, series)?;
                let (first, last) = (points[0], points[points.len() - 1]);
                verdict((last.y >= first.y).then(|| seen(first, last)))
            }
            Self::FlatAfter { series, x, share } => {
                let points = several(curves, series)?;
                let mut later = points.iter().filter(|point| point.x >= x);
                let start = *later.next().ok_or_else(|| format!("nothing from {x} on"))?;
                let mut later = later.peekable();
                later.peek().ok_or_else(|| format!("nothing after {x}"))?;
                let far = later.find(|point| (point.y - start.y).abs() > share * start.y.abs());
                verdict(far.map(|point| seen(start, *point)))
            }
            Self::Crosses { first, second } => {
                let pairs = pairs(curves, first, second)?;
                let (start, end) = (pairs[0], pairs[pairs.len() - 1]);
                if pairs.len() < 2 {
                    return Err("one point alone".to_owned());
                }
                let crosses = start.1 > start.2 && end.1 < end.2;
                let [start, end] = [start, end].map(|(x, a, b)| format!("{a:.2}, {b:.2} at {x}"));
                verdict((!crosses).then(|| format!("{start}; {end}")))
            }
        })
    }
}

fn verdict(against: Option<String>) -> Verdict {
    against.map_or(Verdict::Holds, Verdict::DoesNot)
}

fn seen(from: Point, to: Point) -> String {
    format!("{:.2} at {}, {:.2} at {}", from.y, from.x, to.y, to.x)
}

fn points<'a>(curves: &'a [Curve], series: &str) -> Result<&'a [Point], String> {
    let curve = curves.iter().find(|(name, _)| name == series);
    let points = curve.map(|(_, points)| points.as_slice());
    points
        .filter(|points| !points.is_empty())
        .ok_or_else(|| format!("{series} was not measured"))
}

fn several<'a>(curves: &'a [Curve], series: &str) -> Result<&'a [Point], String> {
    let points = points(curves, series)?;
    let enough = points.len() > 1;
    enough
        .then_some(points)
        .ok_or_else(|| "one point alone".to_owned())
}

/// The places that both have, with both values.
fn pairs(curves: &[Curve], one: &str, other: &str) -> Result<Vec<(f64, f64, f64)>, String> {
    let (one, other) = (points(curves, one)?, points(curves, other)?);
    let beside = |point: &Point| {
        let beside = other.iter().find(|other| other.x == point.x)?;
        Some((point.x, point.y, beside.y))
    };
    let pairs: Vec<_> = one.iter().filter_map(beside).collect();
    let some = !pairs.is_empty();
    some.then_some(pairs)
        .ok_or_else(|| "no place in common".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> Vec<Curve> {
        let curve = |name: &str, ys: [f64; 3]| {
            let points = [1.0, 2.0, 4.0].into_iter().zip(ys);
            (name.to_owned(), points.map(Point::from).collect())
        };
        vec![
            curve("a", [2.0, 4.0, 4.1]),
            curve("b", [1.0, 2.0, 8.0]),
            ("single".to_owned(), vec![Point::from((1.0, 1.0))]),
            ("elsewhere".to_owned(), vec![Point::from((3.0, 1.0))]),
        ]
    }

    fn ask(claim: Claim) -> Verdict {
        claim.ask(&curves())
    }

    fn holds(claim: Claim) -> bool {
        ask(claim) == Verdict::Holds
    }

    #[test]
    fn orders() {
        let order = |above, below| Claim::Order { above, below };
        assert!(holds(order("a", "single")));
        let seen = Verdict::DoesNot("4.10, 8.00 at 4".to_owned());
        assert_eq!(ask(order("a", "b")), seen);
        let reason = |reason: &str| Verdict::NotAsked(reason.to_owned());
        assert_eq!(ask(order("a", "c")), reason("c was not measured"));
        assert_eq!(ask(order("a", "elsewhere")), reason("no place in common"));
    }

    #[test]
    fn ratios() {
        // The geometric mean of 2, 2 and 0.5125 is 1.27.
        let within = |least, most| Claim::RatioWithin {
            of: "a",
            to: "b",
            least,
            most,
        };
        assert!(holds(within(1.2, 1.3)));
        assert_eq!(ask(within(1.3, 2.0)), Verdict::DoesNot("1.27x".to_owned()));
    }

    #[test]
    fn slopes() {
        assert!(holds(Claim::Rises { series: "b" }));
        assert!(matches!(
            ask(Claim::Rises { series: "single" }),
            Verdict::NotAsked(_)
        ));
        assert!(matches!(
            ask(Claim::Falls { series: "b" }),
            Verdict::DoesNot(_)
        ));
        let flat = |series, x| Claim::FlatAfter {
            series,
            x,
            share: 0.1,
        };
        assert!(holds(flat("a", 2.0)));
        assert!(matches!(ask(flat("a", 1.0)), Verdict::DoesNot(_)));
        assert!(matches!(ask(flat("a", 4.0)), Verdict::NotAsked(_)));
    }

    #[test]
    fn a_claim_about_more_cores_is_not_asked() {
        let claim = Claim::Rises { series: "b" };
        let asking = Asking { claim, cores: 8 };
        assert_eq!(asking.ask(&curves(), 8), Verdict::Holds);
        let reason = "needs 8 cores".to_owned();
        assert_eq!(asking.ask(&curves(), 2), Verdict::NotAsked(reason));
    }

    #[test]
    fn crossings() {
        let crosses = |first, second| Claim::Crosses { first, second };
        assert!(holds(crosses("a", "b")));
        assert!(matches!(ask(crosses("b", "a")), Verdict::DoesNot(_)));
        assert!(matches!(ask(crosses("a", "single")), Verdict::NotAsked(_)));
    }
}
