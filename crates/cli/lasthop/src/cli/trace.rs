//! `lasthop trace` and `lasthop flows`: the decision about a frame, and the cached flows.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use api::v1::{
    CaptureQuery, FlowEntry, FlowsDocument, PurgeFilter, TRACE_MAX, Trace, TraceAction,
    TraceDocument, TraceFrame, TraceRequest,
};
use hyper::Method;

use super::args::{ExpectedResult, Flows, FlowsArgs, TraceArgs};
use super::pcap::{Capture, CapturedFrame, Part};
use super::run::{get_and_print, print};
use super::tables::{Table, facts};
use super::{ExitStatus, Failure, capture, emit};
use client::units::{self, count, rate};
use client::{Client, read, with_query};

/// Prints or purges cached flows.
pub(super) async fn flows(client: &Client, args: FlowsArgs) -> ExitStatus {
    if let Some(Flows::Purge { port }) = args.command {
        let path = with_query("/v1/flows", &PurgeFilter { port })?;
        client.delete(&path).await?;
        return emit("flows purged\n");
    }
    let path = with_query("/v1/flows", &args.filter())?;
    let show = |document: &FlowsDocument| flows_table(&document.flows);
    get_and_print(client, &path, args.output, show).await
}

/// Traces frames.
pub(super) async fn trace(client: &Client, args: TraceArgs) -> ExitStatus {
    if let Some(query) = args.capture() {
        return trace_next(client, &args, &query).await;
    }
    if let Some(path) = &args.pcap {
        let name = path.display().to_string();
        let file = open(path).map_err(|error| Failure::Invalid(format!("{name}: {error}")))?;
        return trace_all(client, &args, file, &name).await;
    }
    let request = TraceRequest {
        expression: Some(args.expression.join(" ")),
        ..request(&args)
    };
    let mut results = Results::default();
    request_traces(client, &request, &args, &mut results, &[1]).await?;
    results.check(args.expect)
}

/// The number of traced and dropped frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Results {
    frames: usize,
    dropped: usize,
}

impl Results {
    fn add(&mut self, traces: &[Trace]) {
        let dropped = |trace: &&Trace| trace.outcome.action == TraceAction::Drop;
        self.frames += traces.len();
        self.dropped += traces.iter().filter(dropped).count();
    }

    /// Compares the results with the expected one; without any frame that is an error.
    fn check(self, expected: Option<ExpectedResult>) -> ExitStatus {
        let (differing, result, expected) = match expected {
            None => return Ok(()),
            Some(ExpectedResult::Pass) => (self.dropped, "be dropped", "pass"),
            Some(ExpectedResult::Drop) => (self.frames - self.dropped, "pass", "drop"),
        };
        match (self.frames, differing) {
            (0, _) => Err(Failure::Failed(format!(
                "expected {expected}, found no frame"
            ))),
            (_, 0) => Ok(()),
            (frames, some) => {
                let frames = units::plural(frames as u64, "frame");
                let text = format!("expected {expected}: {some} of {frames} would {result}");
                Err(Failure::Unexpected(text))
            }
        }
    }
}

/// Captures the next frames of the port and traces each.
async fn trace_next(client: &Client, args: &TraceArgs, query: &CaptureQuery) -> ExitStatus {
    let captured = capture::collect(client, &args.port, query).await?;
    let traced = match captured.frames {
        0 if args.output.json => Results::default().check(args.expect),
        0 => emit("no frames captured\n").and_then(|()| Results::default().check(args.expect)),
        _ => trace_all(client, args, &captured.file[..], "captured frames").await,
    };
    let frames = units::plural(captured.frames, "frame");
    let broken = || Failure::Failed(format!("the capture broke off after {frames}"));
    traced.and_then(|()| captured.is_complete.then_some(()).ok_or_else(broken))
}

fn request(args: &TraceArgs) -> TraceRequest {
    TraceRequest {
        port: args.port.clone(),
        ..TraceRequest::default()
    }
}

/// Traces each frame of a file. A part that cannot be read is named, and is left out: that is an
/// error once all others are traced.
async fn trace_all(client: &Client, args: &TraceArgs, file: impl Read, name: &str) -> ExitStatus {
    let mut capture = Capture::new(file);
    let mut request = request(args);
    let mut results = Results::default();
    let mut bad = 0;
    loop {
        let mut numbers = Vec::new();
        request.frames.clear();
        while numbers.len() < TRACE_MAX
            && let Some(part) = capture.next()
        {
            match part {
                Part::Frame(number, frame) => {
                    numbers.push(number);
                    request.frames.push(trace_frame(&frame));
                }
                Part::Nothing(text) => {
                    return Err(Failure::Invalid(format!("{name}: {text}")));
                }
                Part::Bad(text) => {
                    bad += 1;
                    // Without a standard error the exit status remains.
                    drop(writeln!(io::stderr(), "warning: {name}: {text}"));
                }
            }
        }
        if numbers.is_empty() {
            break;
        }
        request_traces(client, &request, args, &mut results, &numbers).await?;
    }
    let parts = units::plural(bad, "part");
    match bad {
        0 => results.check(args.expect),
        _ if results.frames == 0 => Err(Failure::Invalid(format!("{name}: no frame was read"))),
        _ => match results.check(args.expect) {
            Err(Failure::Unexpected(text)) => Err(Failure::Unexpected(text)),
            _ => Err(Failure::Invalid(format!("{name}: {parts} left out"))),
        },
    }
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path.as_os_str() == "-" {
        Ok(Box::new(io::stdin()))
    } else {
        Ok(Box::new(BufReader::new(File::open(path)?)))
    }
}

fn trace_frame(frame: &CapturedFrame) -> TraceFrame {
    let bytes = frame.headers.iter();
    TraceFrame {
        headers: bytes.map(|byte| format!("{byte:02x}")).collect(),
        length: Some(frame.length),
    }
}

/// Requests and prints the traces of some frames with these numbers, and adds their results.
async fn request_traces(
    client: &Client,
    request: &TraceRequest,
    args: &TraceArgs,
    results: &mut Results,
    numbers: &[u64],
) -> ExitStatus {
    let response = client.send(Method::POST, "/v1/trace", request).await?;
    let document: TraceDocument = read(&response)?;
    let is_first = results.frames == 0;
    results.add(&document.traces);
    if args.output.json {
        return print::<TraceDocument>(args.output, &response, |_| String::new());
    }
    let numbered = args.is_numbered();
    let mut text = String::new();
    for (trace, number) in document.traces.iter().zip(numbers) {
        if !(is_first && text.is_empty()) {
            text.push('\n');
        }
        text += &format_trace(trace, numbered.then_some(*number));
    }
    emit(&text)
}

/// Formats a trace, one line per step.
fn format_trace(trace: &Trace, number: Option<u64>) -> String {
    let frame = match number {
        Some(number) => format!("{number}: {}", trace.frame),
        None => trace.frame.clone(),
    };
    let mut lines = vec![("frame", frame)];
    lines.extend(trace.filled.iter().map(|note| ("assumed", note.clone())));
    let steps = trace.steps.iter();
    lines.extend(steps.map(|step| (step.stage.as_str(), step.text.clone())));
    lines.push(("result", trace.outcome.text.clone()));
    let limits = trace.limits.iter();
    lines.extend(limits.map(|limit| ("limit", limit.text.clone())));
    let mirrors = trace.mirrors.iter();
    lines.extend(mirrors.map(|mirror| ("mirror", mirror.text.clone())));
    if let Some(entry) = &trace.prefilter {
        let (frames, age) = (count(entry.frames), ago(entry.age_ms));
        let text = format!("such frames end at the wire: {frames} in {age}, by an entry for");
        lines.extend([("prefilter", text), ("", entry.matches.clone())]);
    } else if trace.flows.is_empty() {
        let none = "not cached: the first such frame causes an upcall";
        lines.push(("flow", none.to_owned()));
    }
    for cached in &trace.flows {
        let used = match cached.flow.packets {
            0 => "not used yet".to_owned(),
            packets => format!(
                "{} packets, the last {} ago",
                count(packets),
                ago(cached.flow.idle_ms)
            ),
        };
        let age = ago(cached.flow.age_ms);
        let text = format!("cached by worker {} {age} ago, {used}", cached.worker);
        lines.push(("flow", text));
        lines.push((
            "",
            format!("{}: {}", cached.flow.matches, cached.flow.action),
        ));
        if let Some(difference) = &cached.disagrees {
            lines.push(("", format!("outdated: {difference}")));
        }
    }
    facts(&lines)
}

fn ago(ms: impl Into<u64>) -> String {
    let ms = ms.into();
    match ms {
        0..1000 => format!("{ms} ms"),
        _ => units::duration(Duration::from_millis(ms).as_secs()),
    }
}

fn flows_table(flows: &[FlowEntry]) -> String {
    Table::of(flows)
        .number("PACKETS", |flow| count(flow.packets))
        .number("RATE", |flow| rate(flow.rate(), ""))
        .number("IDLE", |flow| ago(flow.idle_ms))
        .number("AGE", |flow| ago(flow.age_ms))
        .text("FRAMES", |flow| flow.matches.clone())
        .text("ACTION", |flow| flow.action.clone())
        .format_or("no cached flows")
}

#[cfg(test)]
mod tests {
    use api::v1::{TraceAction, TraceOutcome, TraceStage, TraceStep, TracedFlow};

    use super::*;

    fn flow(packets: u64) -> FlowEntry {
        FlowEntry {
            matches: "from vm1, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02".to_owned(),
            action: "to vm2, untagged".to_owned(),
            from: Some("vm1".to_owned()),
            to: Some("vm2".to_owned()),
            packets,
            packets_per_1000_s: packets * 100,
            idle_ms: 250,
            age_ms: 90_000,
        }
    }

    fn trace(flows: Vec<TracedFlow>) -> Trace {
        let step = |stage, text: &str| TraceStep {
            stage,
            text: text.to_owned(),
            drop: None,
            segment: None,
            ruling: None,
            port: None,
        };
        Trace {
            prefilter: None,
            frame: "ether 52:54:00:00:00:01 > 52:54:00:00:00:02 icmp 10.0.0.1 > 10.0.0.2, 42 bytes"
                .to_owned(),
            filled: vec!["destination 52:54:00:00:00:02: seen with 10.0.0.2 5 s ago".to_owned()],
            steps: vec![
                step(TraceStage::Segment, "lan, as untagged from vm1"),
                step(
                    TraceStage::Policy,
                    "from vm1: allowed by default, no rule matches (lists: out)",
                ),
            ],
            outcome: TraceOutcome {
                action: TraceAction::Deliver,
                text: "to vm2".to_owned(),
                reason: None,
                receivers: Vec::new(),
            },
            limits: Vec::new(),
            mirrors: Vec::new(),
            flows,
        }
    }

    #[test]
    fn a_trace_reads_from_top_to_bottom() {
        let text = format_trace(&trace(Vec::new()), None);
        let expected = "\
frame    ether 52:54:00:00:00:01 > 52:54:00:00:00:02 icmp 10.0.0.1 > 10.0.0.2, 42 bytes
assumed  destination 52:54:00:00:00:02: seen with 10.0.0.2 5 s ago
segment  lan, as untagged from vm1
policy   from vm1: allowed by default, no rule matches (lists: out)
result   to vm2
flow     not cached: the first such frame causes an upcall
";
        assert_eq!(text, expected);
        let disagrees =
            Some("its frames are dropped: reflection; now they would be to vm2".to_owned());
        let cached = |packets, disagrees| TracedFlow {
            worker: 0,
            flow: flow(packets),
            disagrees,
        };
        let text = format_trace(
            &trace(vec![cached(17, None), cached(0, disagrees)]),
            Some(3),
        );
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("frame    3: ether "));
        assert_eq!(
            lines[5..],
            [
                "flow     cached by worker 0 1 min 30 s ago, 17 packets, the last 250 ms ago",
                "         from vm1, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02: to vm2, untagged",
                "flow     cached by worker 0 1 min 30 s ago, not used yet",
                "         from vm1, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02: to vm2, untagged",
                "         outdated: its frames are dropped: reflection; now they would be to vm2",
            ]
        );
    }

    #[test]
    fn the_expected_result_is_compared_with_every_frame() {
        let of = |actions: &[TraceAction]| {
            let traces: Vec<Trace> = actions
                .iter()
                .map(|action| Trace {
                    outcome: TraceOutcome {
                        action: *action,
                        ..trace(Vec::new()).outcome
                    },
                    ..trace(Vec::new())
                })
                .collect();
            let mut results = Results::default();
            results.add(&traces);
            let text = |expected| match results.check(Some(expected)) {
                Ok(()) => String::new(),
                Err(failure) => failure.to_string(),
            };
            assert!(results.check(None).is_ok());
            (text(ExpectedResult::Pass), text(ExpectedResult::Drop))
        };
        let (deliver, drop) = (TraceAction::Deliver, TraceAction::Drop);
        let pass = "expected drop: 2 of 2 frames would pass".to_owned();
        assert_eq!(of(&[deliver, TraceAction::Answer]), (String::new(), pass));
        let dropped = "expected pass: 1 of 1 frame would be dropped".to_owned();
        assert_eq!(of(&[drop]), (dropped, String::new()));
        let (passes, drops) = of(&[drop, TraceAction::Flood, drop]);
        assert_eq!(passes, "expected pass: 2 of 3 frames would be dropped");
        assert_eq!(drops, "expected drop: 1 of 3 frames would pass");
        let none = "expected pass, found no frame";
        assert_eq!(of(&[]).0, none);
    }

    #[test]
    fn flows_are_a_table() {
        let expected = "\
PACKETS   RATE    IDLE         AGE  FRAMES                                                     ACTION
     17  2 /s  250 ms  1 min 30 s  from vm1, untagged, 52:54:00:00:00:01 > 52:54:00:00:00:02  to vm2, untagged
";
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&flows_table(&[flow(17)])), words(expected));
        assert_eq!(flows_table(&[]), "no cached flows\n");
    }
}
