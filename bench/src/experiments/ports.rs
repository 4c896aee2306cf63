//! Cost of idle ports: CPU, memory, time to start.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::peers::lasthop as peer;
use crate::placement::{Placement, round_trip};
use crate::plan::{Plan, progress};
use crate::procfs::{CpuTimes, family_kib, family_seconds};
use crate::report::{Report, Row, Table};
use crate::sample::wait_quiet;
use crate::stop;

const IDLE_PORTS: [u32; 3] = [1, 16, 64];
const GROWTH_PORTS: [u32; 4] = [1, 16, 64, 256];
/// Time for processes to settle after attaching.
const SETTLE: Duration = Duration::from_secs(1);
/// How often a row is measured before it is given up.
const ATTEMPTS: usize = 3;
/// Share of a core that others may use meanwhile.
const QUIET: f64 = 0.1;

/// CPU use without traffic, by number of attached, connected ports.
pub(crate) fn idle(plan: &Plan) -> Result<Report> {
    let columns = vec!["ports", "CPU, % of a core"];
    rows(
        plan,
        "idle",
        "CPU use without traffic, all processes",
        columns,
        &IDLE_PORTS,
        idle_row,
    )
}

/// Memory and start-up time by number of ports.
pub(crate) fn growth(plan: &Plan) -> Result<Report> {
    let columns = vec![
        "ports",
        "start-up, ms",
        "attaching a guest, ms",
        "memory, MiB",
        "memory with guests, MiB",
        "KiB a port",
    ];
    let title = "Memory of all processes and start-up time";
    rows(plan, "growth", title, columns, &GROWTH_PORTS, growth_row)
}

/// Measures each row until it is undisturbed, or gives it up.
fn rows(
    plan: &Plan,
    name: &'static str,
    title: &str,
    columns: Vec<&'static str>,
    ports: &[u32],
    row: impl Fn(&Plan, u32) -> Result<Vec<f64>>,
) -> Result<Report> {
    let (mut rows, mut notes, mut disturbed, mut flipped) = (Vec::new(), Vec::new(), 0, 0);
    for &ports in ports {
        let before = rows.len();
        for _ in 0..ATTEMPTS {
            wait_quiet(plan.patience / 20)?;
            let before_ns = round_trip(plan.cores)?;
            let (start, cpu) = (Instant::now(), CpuTimes::now());
            let values = row(plan, ports)?;
            let cpu = CpuTimes::now().since(&cpu);
            let others = (cpu.others() + cpu.steal) / start.elapsed().as_secs_f64();
            let trips_ns = [before_ns, round_trip(plan.cores)?];
            let placement = Placement::of_both(trips_ns, plan.near_below);
            let shown: Vec<String> = columns
                .iter()
                .zip(&values)
                .map(|(column, value)| format!("{column} {value:.2}"))
                .collect();
            progress(&format!(
                "{name}: {} (others {:.0} %)",
                shown.join(", "),
                100.0 * others
            ));
            match placement {
                Some(placement) if others <= QUIET => {
                    rows.push(Row {
                        values,
                        trips_ns,
                        placement,
                    });
                    break;
                }
                Some(_) => disturbed += 1,
                None => flipped += 1,
            }
        }
        if rows.len() == before {
            notes.push(format!(
                "{ports} ports: given up, no attempt was undisturbed"
            ));
        }
    }
    if disturbed + flipped > 0 {
        notes.push(format!(
            "{flipped} measurements were discarded because the placement flipped and {disturbed} \
             because others used \
             the machine"
        ));
    }
    Ok(Report::new(
        plan,
        name,
        title,
        notes,
        Table { columns, rows },
    ))
}

fn idle_row(plan: &Plan, ports: u32) -> Result<Vec<f64>> {
    let lasthop = peer::start_ports(plan, ports)?;
    let guests = peer::attach(&lasthop, 0..ports)?;
    stop::sleep(SETTLE)?;
    let (start, used) = (Instant::now(), family_seconds(lasthop.supervisor()));
    stop::sleep(plan.idle)?;
    let used = family_seconds(lasthop.supervisor()) - used;
    let percent = 100.0 * used / start.elapsed().as_secs_f64();
    drop(guests);
    lasthop.end();
    Ok(vec![f64::from(ports), percent])
}

fn growth_row(plan: &Plan, ports: u32) -> Result<Vec<f64>> {
    let begin = Instant::now();
    let lasthop = peer::start_ports(plan, ports)?;
    let start_up = begin.elapsed();
    let alone = mib(family_kib(lasthop.supervisor()));
    let begin = Instant::now();
    let guests = peer::attach(&lasthop, 0..ports)?;
    let attaching = begin.elapsed();
    stop::sleep(SETTLE)?;
    let attached = mib(family_kib(lasthop.supervisor()));
    drop(guests);
    lasthop.end();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let ports = f64::from(ports);
    Ok(vec![
        ports,
        ms(start_up),
        ms(attaching) / ports,
        alone,
        attached,
        attached * 1024.0 / ports,
    ])
}

fn mib(kib: u64) -> f64 {
    u32::try_from(kib).map_or(f64::MAX, f64::from) / 1024.0
}
