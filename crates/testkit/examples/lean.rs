//! Drives pairs of vhost-user ports as fast as they go, by hand.
//!
//! ```text
//! cargo run --release -p lasthop-testkit --example lean -- vm1.sock vm2.sock --seconds 3 --runs 3
//! cargo run --release -p lasthop-testkit --example lean -- --null 0 --cpu 1
//! ```

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use testkit::lean::{Lean, LeanConfig, LeanReport, Until};

const HELP: &str = "\
lean SOCKET SOCKET [SOCKET SOCKET ...] [options]
  --listen         listen on the sockets instead of dialling
  --packed         packed rings
  --no-in-order    do not take IN_ORDER
  --queue N        entries of each queue (1024)
  --len N          bytes of a frame (64)
  --rx-buffer N    bytes of a receive buffer (2048)
  --apart          header and frame in different cache lines, as in DPDK's buffers
  --flows N        UDP flows of each port (1)
  --touch          read the head of every received frame
  --rewrite        write into every frame before it is sent
  --batch N        frames published at once (32)
  --gap N          processor pauses after a round without work (0)
  --window N       most frames on their way in each direction
  --cpu N          CPU to run on
  --null CPU       no sockets: against a thread on CPU that only gives buffers back
  --warm-up S      seconds before the first run (0.5)
  --seconds S      length of a run (2)
  --runs N         how many (3)";

struct Options {
    config: LeanConfig,
    null: Option<usize>,
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
            "--apart" => config.apart = true,
            "--flows" => config.flows = value(args)?,
            "--touch" => config.touch = true,
            "--rewrite" => config.rewrite = true,
            "--batch" => config.batch = value(args)?,
            "--gap" => config.gap = value(args)?,
            "--window" => config.window = Some(value(args)?),
            "--cpu" => config.cpu = Some(value(args)?),
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
    let total = |of: fn(&testkit::lean::LeanPort) -> u64| report.ports.iter().map(of).sum::<u64>();
    format!(
        "{:.2} Mpps, {:.1} ns a frame, {:.0} % of rounds idle, lost {}, kicks {}, strange {}, sent>received {}",
        report.mpps(),
        1e3 / report.mpps().max(1e-9),
        100.0 * report.idle,
        report.lost,
        total(|p| p.kicks),
        total(|p| p.strange),
        ports.join(" ")
    )
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
    lean.run(Until::Elapsed(Duration::from_secs_f64(all.warm_up)))?;
    for _ in 0..all.runs {
        let report = lean.run(Until::Elapsed(Duration::from_secs_f64(all.seconds)))?;
        println!("{}", line(&report));
    }
    Ok(())
}
