//! Captures, as far as the switch has to be told.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};

use api::v1::{CAPTURE_BUFFER, CaptureDirection, CaptureQuery, Problem, ProblemKind};
use channel::capture::{CaptureOrder, MAX_CAPTURES, MAX_RING, MIN_RING, Region, Way};
use channel::switching::{Order, Report};
use port::PortId;
use wire::expression::Filter;

use super::{Engine, unavailable};
use crate::command::Begun;

/// Bytes of the rings of all captures together, in each forwarding thread: room for as many captures as there may be, with rings of
/// the usual length, or for two with the longest.
const ALL_RINGS: u32 = MAX_CAPTURES as u32 * CAPTURE_BUFFER;

/// Those that go on.
#[derive(Debug, Default)]
pub(super) struct Captures {
    last: u32,
    /// By number.
    open: BTreeMap<u32, Capture>,
}

#[derive(Debug)]
struct Capture {
    /// Whether somebody wants it still.
    held: Weak<()>,
    /// Bytes of its ring in each thread.
    ring: u32,
}

impl Captures {
    /// Whether the rings of those that are wanted leave room for another.
    fn room_for(&self, ring: u32) -> Result<(), Problem> {
        let wanted = self
            .open
            .values()
            .filter(|open| open.held.strong_count() > 0);
        let left = ALL_RINGS - wanted.map(|open| open.ring).sum::<u32>();
        if ring > left {
            return Err(Problem::unavailable(format!(
                "the buffers of all captures are at most {ALL_RINGS} bytes together, and {left} are left"
            ))
            .with_field("buffer"));
        }
        Ok(())
    }
}

fn invalid(field: &str, detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Invalid, detail).with_field(field)
}

/// What the switch is to do.
fn order(id: u32, port: PortId, query: &CaptureQuery) -> Result<CaptureOrder, Problem> {
    Filter::parse(&query.filter).map_err(|error| invalid("filter", error.to_string()))?;
    if query.snaplen == 0 {
        return Err(invalid("snaplen", "nothing of a frame is nothing to see"));
    }
    if query.count == Some(0) {
        return Err(invalid("count", "it would end before it begins"));
    }
    let ring = query.buffer;
    if !ring.is_power_of_two() || !(MIN_RING..=MAX_RING).contains(&ring) {
        let detail = format!("has to be a power of two from {MIN_RING} to {MAX_RING}");
        return Err(invalid("buffer", detail));
    }
    Ok(CaptureOrder {
        id,
        port,
        filter: query.filter.clone(),
        snaplen: query.snaplen,
        way: match query.direction {
            CaptureDirection::In => Some(Way::In),
            CaptureDirection::Out => Some(Way::Out),
            CaptureDirection::Both => None,
        },
        only_drops: query.drops,
        ring,
    })
}

impl Engine {
    /// Has a port's frames copied.
    pub(super) fn capture(&mut self, name: &str, query: &CaptureQuery) -> Result<Begun, Problem> {
        let mut ports = self.ports.values();
        let port = ports.find(|port| port.name == name).map(|port| port.id);
        let port = port.ok_or_else(|| Problem::no_such_port(name))?;
        self.captures.last = self.captures.last.wrapping_add(1);
        let id = self.captures.last;
        let order = order(id, port, query)?;
        let ring = order.ring;
        self.captures.room_for(ring)?;
        let mut memory = None;
        self.switch
            .request(Order::Capture(order), &[], |report, mut fds| match report {
                Report::Capture { id: of, threads } if of == id => {
                    memory = fds.pop().map(|file| (file, threads));
                    None
                }
                other => Some(other),
            })
            .map_err(unavailable)?;
        let held = Arc::new(());
        let capture = Capture {
            held: Arc::downgrade(&held),
            ring,
        };
        self.captures.open.insert(id, capture);
        let (file, threads) = memory.ok_or_else(|| Problem::internal("no memory came"))?;
        let region = Region::map(&file, threads.into(), ring).map_err(unavailable)?;
        let reader = region.reader().map_err(unavailable)?;
        Ok(Begun {
            number: id,
            reader,
            held,
        })
    }

    /// Ends a capture.
    pub(super) fn end_capture(&mut self, id: u32) -> Result<(), Problem> {
        if self.captures.open.remove(&id).is_none() {
            let detail = format!("there is no capture {id}");
            return Err(Problem::new(ProblemKind::NotFound, detail));
        }
        let ended = self.switch.order(Order::EndCapture(id), &[]);
        ended.map(drop).map_err(unavailable)
    }

    /// Ends them all.
    pub(super) fn end_captures(&mut self) -> io::Result<()> {
        while let Some((id, _)) = self.captures.open.pop_first() {
            self.switch.order(Order::EndCapture(id), &[])?;
        }
        Ok(())
    }

    /// Ends those that nobody wants any more who has not said so.
    pub(super) fn end_unwanted_captures(&mut self) -> io::Result<()> {
        let open = self.captures.open.iter();
        let unwanted = open.filter(|(_, capture)| capture.held.strong_count() == 0);
        for id in unwanted.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.captures.open.remove(&id);
            self.switch.order(Order::EndCapture(id), &[])?;
        }
        Ok(())
    }
}
