//! One rule of many is changed by the API while a stream runs and many flows are cached.
//!
//! ```text
//!   p0, p1   a client that had so many flows cached, and is silent then
//!   p2, p3   a numbered stream, of which nothing may be lost
//! ```
//! The list is for all ports, so all cached flows are outdated by each change; those of the stream
//! are decided anew at once, the others are gone when the switch says that hardly any are left.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use e2e::numbered::{Stream, collect, introduce, settles};
use load::lean::{Lean, LeanConfig, Until};
use serde::Serialize;
use serde_json::Value;
use testkit::packets::{Flow, SequenceChecker};
use testkit::{FakeGuest, GuestConfig};

use super::tables::Changes;
use crate::peers::lasthop::{self, Lasthop};

use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::rules::{LIST, RuleSet};
use crate::{procfs, stop};
use e2e::machine::pin;

const RULES: [usize; 2] = [10_000, 100_000];
const FLOWS: [u64; 2] = [1024, 65_536];
/// Changes of each row.
const TIMES: usize = 20;
const TIMES_QUICK: usize = 5;
/// Flows that are left when all that were outdated are gone: those of the stream, and frames that a
/// host sends by itself.
const FEW: u64 = 32;
/// Frames of a lot of new flows.
const LOT: u64 = 2048;
const LIMIT: Duration = Duration::from_secs(30);
/// Between two frames of the stream.
const GAP: Duration = Duration::from_micros(100);
const BYTES: usize = 100;

const NOTES: [&str; 3] = [
    "answered: from the request to its answer, when the new program is in the switch; decided \
     anew: until no flow is left that was \
     cached before, as the API tells, which takes a fraction of a millisecond itself; medians and \
     worst",
    "whole apply: PUT /v1/access with all rules at once, read, checked, compiled, published and \
     saved; memory is what control had \
     afterwards, and more than before",
    "lost: of a numbered stream that ran all the time, a frame and a pause of 100 us in turn",
];

/// Measurements of the changes of one row.
#[derive(Debug, Serialize)]
pub(crate) struct Changed {
    pub(crate) rules: usize,
    /// Cached before each change.
    pub(crate) flows: u64,
    pub(crate) answered_ms: Vec<f64>,
    pub(crate) forgotten_ms: Vec<f64>,
    pub(crate) apply_ms: f64,
    /// Control's memory with the rules, and without.
    pub(crate) control_mib: [f64; 2],
    pub(crate) sent: u64,
    pub(crate) lost: u64,
}

/// See the module.
pub(crate) fn changes(plan: &Plan) -> Result<Report> {
    let mut rows = Vec::new();
    for count in RULES {
        let set = RuleSet::mixed(count);
        for flows in FLOWS {
            progress(&format!("changes: {count} rules, {flows} flows"));
            rows.push(Scene::start(plan, &set)?.changes(plan, &set, flows)?);
        }
    }
    let notes = NOTES.map(str::to_owned).to_vec();
    let title = "One rule of many changes under traffic";
    Ok(Report::new(plan, "changes", title, notes, Changes { rows }))
}

struct Scene {
    lasthop: Lasthop,
    api: PathBuf,
    apply_ms: f64,
    control_mib: [f64; 2],
}

impl Scene {
    /// A switch with these rules, and what it took to give it them.
    fn start(plan: &Plan, set: &RuleSet) -> Result<Self> {
        let lasthop = lasthop::with_four_ports(plan)?;
        let api = lasthop.socket_of("api");
        let before = control_mib(&lasthop)?;
        let document = set.document().to_string();
        let begin = Instant::now();
        request(&api, "PUT", "/v1/access", &document)?;
        let apply_ms = millis(begin);
        let after = control_mib(&lasthop)?;
        Ok(Self {
            lasthop,
            api,
            apply_ms,
            control_mib: [after, before],
        })
    }

    /// Changes one rule after the other while the stream runs.
    fn changes(self, plan: &Plan, set: &RuleSet, flows: u64) -> Result<Changed> {
        let mut filler = Filler::connect(plan, &self.lasthop, set, flows)?;
        let mut guests = [2, 3].map(|port: u8| {
            let config = GuestConfig::default().guest(port + 1);
            FakeGuest::connect(&lasthop::socket(&self.lasthop, port.into()), config)
        });
        let [Ok(a), Ok(b)] = &mut guests else {
            return Err(anyhow!("a guest is not attached"));
        };
        introduce(a, b, Flow::v4(3, 4));
        let mut changed = Changed {
            rules: set.len(),
            flows,
            answered_ms: Vec::new(),
            forgotten_ms: Vec::new(),
            apply_ms: self.apply_ms,
            control_mib: self.control_mib,
            sent: 0,
            lost: 0,
        };
        let ended = AtomicBool::new(false);
        let (done, streamed) = std::thread::scope(|scope| {
            let stream = scope.spawn(|| stream(plan, a, b, &ended));
            let times = if plan.quick { TIMES_QUICK } else { TIMES };
            let done = (0..times).try_for_each(|time| {
                filler.fill(&self.api)?;
                self.change(set, time, &mut changed)
            });
            ended.store(true, Ordering::Relaxed);
            (done, stream.join())
        });
        done?;
        let streamed = streamed.map_err(|_| anyhow!("the stream panicked"))?;
        (changed.sent, changed.lost) = streamed?;
        self.lasthop.end();
        Ok(changed)
    }

    /// Turns one rule's action round.
    fn change(&self, set: &RuleSet, time: usize, changed: &mut Changed) -> Result<()> {
        let number = (time * 997 + set.len() / 2) % set.len();
        let mut rule = set.rule(number);
        let allows = rule["action"] == "allow";
        rule["action"] = if allows { "reject" } else { "allow" }.into();
        let path = format!("/v1/access/lists/{LIST}/rules/r{number}");
        let begin = Instant::now();
        request(&self.api, "PUT", &path, &rule.to_string())?;
        changed.answered_ms.push(millis(begin));
        stop::try_wait("outdated flows are gone", LIMIT, || {
            Ok((flows(&self.api)? <= FEW).then_some(()))
        })?;
        changed.forgotten_ms.push(millis(begin));
        Ok(())
    }
}

/// Fills the flow cache.
struct Filler {
    lean: Lean,
    flows: u64,
}

impl Filler {
    fn connect(plan: &Plan, lasthop: &Lasthop, set: &RuleSet, flows: u64) -> Result<Self> {
        let config = LeanConfig {
            sockets: vec![lasthop::socket(lasthop, 0), lasthop::socket(lasthop, 1)],
            heads: set.heads(usize::try_from(4 * flows)?, None, 64),
            window: Some(64),
            cpu: Some(plan.cores[1]),
            ..LeanConfig::default()
        };
        let lean = Lean::connect(config)?;
        Ok(Self { lean, flows })
    }

    /// Sends new frames until there are enough flows.
    fn fill(&mut self, api: &Path) -> Result<()> {
        stop::try_wait("flows are cached", LIMIT, || {
            if flows(api)? >= self.flows {
                return Ok(Some(()));
            }
            self.lean.run(Until::Sent(LOT.min(self.flows)))?;
            Ok(None)
        })
    }
}

/// Sends a numbered stream until it is stopped; returns the numbers of sent and of lost frames.
fn stream(
    plan: &Plan,
    from: &mut FakeGuest,
    to: &mut FakeGuest,
    ended: &AtomicBool,
) -> Result<(u64, u64)> {
    pin(plan.cores[1])?;
    let mut checker = SequenceChecker::default();
    let mut stream = Stream::new(0, Flow::v4(3, 4));
    while !ended.load(Ordering::Relaxed) {
        stream.send(from, BYTES);
        collect(to, &mut checker);
        std::thread::sleep(GAP);
    }
    settles(to, &mut checker, &stream, Duration::from_secs(1));
    let at_the_end = stream.sent() - checker.next_of(0);
    Ok((stream.sent(), checker.lost() + at_the_end))
}

fn millis(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

fn control_mib(lasthop: &Lasthop) -> Result<f64> {
    let family = procfs::descendants(lasthop.supervisor());
    let is_control = |pid: &u32| procfs::name(*pid).is_some_and(|name| name == "lasthop-control");
    let pid = family
        .into_iter()
        .find(is_control)
        .context("control runs")?;
    let kib = procfs::memory_kib(pid).context("control runs")?;
    Ok(kib as f64 / 1024.0)
}

/// Flows that the switch has.
fn flows(api: &Path) -> Result<u64> {
    let body = request(api, "GET", "/v1/status", "")?;
    let status: Value = serde_json::from_str(&body)?;
    status["switch"]["flows"]
        .as_u64()
        .context("a number of flows")
}

/// Asks the API for something; the body of its answer.
fn request(api: &Path, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = UnixStream::connect(api).context("the API does not listen")?;
    stream.set_read_timeout(Some(LIMIT))?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: lasthop\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer of HTTP")?;
    ensure!(
        head.starts_with("HTTP/1.1 2"),
        "{method} {path}: {head}: {body}"
    );
    Ok(body.to_owned())
}
