//! Drives pairs of vhost-user ports as fast as they go, or one at a given rate, by hand.
//!
//! ```text
//! cargo run --release -p lasthop-load --example lean -- vm1.sock vm2.sock --seconds 3 --runs 3
//! cargo run --release -p lasthop-load --example lean -- vm1.sock vm2.sock --rate 100000
//! cargo run --release -p lasthop-load --example lean -- --null 0 --cpu 1
//! ```

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use load::lean::{Histogram, Lean, LeanConfig, LeanError, LeanReport, Pace, PacedReport, Until};

const HELP: &str = "\
lean SOCKET SOCKET [SOCKET SOCKET ...] [options]
  --listen         listen on the sockets instead of dialling
  --packed         packed rings
  --no-in-order    do not take IN_ORDER
  --queue N        entries of each queue (1024)
  --len N          bytes of a frame (64)
  --rx-buffer N    bytes of a receive buffer (2048)
  --bulk           TCP super-frames of 64 KiB, written by the sender and read by the receiver
  --apart          header and frame in different cache lines, as in DPDK's buffers
  --flows N        UDP flows of each port (1)
  --touch          read the head of every received frame
  --rewrite        write into every frame before it is sent
  --batch N        frames published at once (32)
  --gap N          processor pauses after a round without work (0)
  --rate PPS       from the first port to the second, this many frames a second: latency
  --poisson        with --rate: random gaps instead of equal ones
  --window N       most frames on their way in each direction
  --cpu N          CPU to run on
  --null CPU       no sockets: against a thread on CPU that only gives buffers back
  --warm-up S      seconds before the first run (0.5)
  --seconds S      length of a run (2)
  --runs N         how many (3)";

struct Options {
    config: LeanConfig,
    null: Option<usize>,
    rate: Option<f64>,
    poisson: bool,
    warm_up: f64,
    seconds: f64,
    runs: u32,
}

fn value<T: FromStr<Err: Display>>(args: &mut impl Iterator<Item = String>) -> Result<T, String> {
    let text = args.next().ok_or("a value is missing")?;
    text.parse().map_err(|e| format!("{text}: {e}"))
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut all = Options {
        config: LeanConfig::default(),
        null: None,
        rate: None,
        poisson: false,
        warm_up: 0.5,
        seconds: 2.0,
        runs: 3,
    };
    while let Some(arg) = args.next() {
        let args = &mut args;
        let config = &mut all.config;
        match arg.as_str() {
            "--listen" => config.listen = true,
            "--packed" => config.packed = true,
            "--no-in-order" => config.in_order = false,
            "--queue" => config.queue_size = value(args)?,
            "--len" => config.frame_len = value(args)?,
            "--rx-buffer" => config.rx_buffer = value(args)?,
            "--bulk" => config.bulk = true,
            "--apart" => config.apart = true,
            "--flows" => config.flows = value(args)?,
            "--touch" => config.touch = true,
            "--rewrite" => config.rewrite = true,
            "--batch" => config.batch = value(args)?,
            "--gap" => config.gap = value(args)?,
            "--window" => config.window = Some(value(args)?),
            "--cpu" => config.cpu = Some(value(args)?),
            "--rate" => all.rate = Some(value(args)?),
            "--poisson" => all.poisson = true,
            "--null" => all.null = Some(value(args)?),
            "--warm-up" => all.warm_up = value(args)?,
            "--seconds" => all.seconds = value(args)?,
            "--runs" => all.runs = value(args)?,
            path if !path.starts_with('-') => config.sockets.push(path.into()),
            other => return Err(format!("{other}: no such option\n{HELP}")),
        }
    }
    if all.null.is_none() && all.config.sockets.is_empty() {
        return Err(HELP.into());
    }
    Ok(all)
}

fn line(report: &LeanReport) -> String {
    let ports: Vec<String> = report
        .ports
        .iter()
        .map(|p| format!("{}>{}", p.sent, p.received))
        .collect();
    let total = |of: fn(&load::lean::LeanPort) -> u64| report.ports.iter().map(of).sum::<u64>();
    format!(
        "{:.2} Mpps, {:.2} GiB/s, {:.1} ns a frame, {:.0} % of rounds idle, {:.0} % of time with \
         payload, lost {}, kicks {}, strange {}, sent>received {}",
        report.mpps(),
        report.gib_per_second(),
        1e3 / report.mpps().max(1e-9),
        100.0 * report.idle,
        100.0 * report.working(),
        report.lost,
        total(|p| p.kicks),
        total(|p| p.strange),
        ports.join(" ")
    )
}

fn micros(times: &Histogram) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    format!(
        "p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} us",
        us(times.quantile(0.5)),
        us(times.quantile(0.99)),
        us(times.quantile(0.999)),
        us(times.max())
    )
}

fn paced_line(report: &PacedReport) -> String {
    format!(
        "{:.0} pps, latency {}; client late {}; sent {}, received {}, lost {}, unsent {}, kicks {}",
        report.rate(),
        micros(&report.latency),
        micros(&report.lag),
        report.sent,
        report.received,
        report.lost,
        report.unsent,
        report.kicks
    )
}

/// One run of the kind that is asked for.
fn run(lean: &mut Lean, pace: Option<Pace>, seconds: f64) -> Result<String, LeanError> {
    let time = Duration::from_secs_f64(seconds);
    Ok(match pace {
        Some(pace) => paced_line(&lean.paced(pace, time)?),
        None => line(&lean.run(Until::Elapsed(time))?),
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let all = options(std::env::args().skip(1))?;
    let (mut lean, _null) = match all.null {
        Some(cpu) => {
            let (lean, back) = Lean::null(all.config, 2, Some(cpu))?;
            (lean, Some(back))
        }
        None => (Lean::connect(all.config)?, None),
    };
    for features in lean.features() {
        println!("features {features:#x}");
    }
    // The switch learns who is where.
    lean.run(Until::Sent(1))?;
    let poisson = all.poisson;
    let pace = all.rate.map(|rate| Pace { rate, poisson });
    run(&mut lean, pace, all.warm_up)?;
    for _ in 0..all.runs {
        println!("{}", run(&mut lean, pace, all.seconds)?);
    }
    Ok(())
}
