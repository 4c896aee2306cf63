//! Captures: the engine's commands to the switch.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};

use api::v1::{CAPTURE_BUFFER, CaptureDirection, CaptureQuery, Problem, ProblemKind};
use channel::capture::{CaptureCommand, MAX_CAPTURES, MAX_RING, MIN_RING, Region, Way};
use channel::switching::{SwitchCommand, SwitchEvent};
use filter::Filter;
use port::PortId;

use super::{Engine, unavailable};
use crate::command::StartedCapture;

/// Bytes of the rings of all captures together, in each forwarding thread: enough for
/// [`MAX_CAPTURES`] with rings of the default length, or for two with the longest.
const ALL_RINGS: u32 = MAX_CAPTURES as u32 * CAPTURE_BUFFER;

/// The open captures.
#[derive(Debug, Default)]
pub(super) struct Captures {
    last: u32,
    /// Captures by number.
    open: BTreeMap<u32, Capture>,
}

#[derive(Debug)]
struct Capture {
    /// Expires when the client's side of the capture is gone.
    held: Weak<()>,
    /// Bytes of its ring in each thread.
    ring: u32,
}

impl Captures {
    /// Checks that the rings of the captures in use leave room for another.
    fn room_for(&self, ring: u32) -> Result<(), Problem> {
        let used = self
            .open
            .values()
            .filter(|open| open.held.strong_count() > 0);
        let left = ALL_RINGS - used.map(|open| open.ring).sum::<u32>();
        if ring > left {
            return Err(Problem::unavailable(format!(
                "buffers of all captures are limited to {ALL_RINGS} bytes, {left} are free"
            ))
            .with_field("buffer"));
        }
        Ok(())
    }
}

fn invalid(field: &str, detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Invalid, detail).with_field(field)
}

/// Validates a request and returns the command to the switch.
fn command(id: u32, port: PortId, query: &CaptureQuery) -> Result<CaptureCommand, Problem> {
    Filter::parse(&query.filter).map_err(|error| invalid("filter", error.to_string()))?;
    if query.snaplen == 0 {
        return Err(invalid("snaplen", "must be at least 1"));
    }
    if query.count == Some(0) {
        return Err(invalid("count", "must be at least 1"));
    }
    let ring = query.buffer;
    if !ring.is_power_of_two() || !(MIN_RING..=MAX_RING).contains(&ring) {
        let detail = format!("must be a power of two from {MIN_RING} to {MAX_RING}");
        return Err(invalid("buffer", detail));
    }
    Ok(CaptureCommand {
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
    /// Starts to capture a port's frames.
    pub(super) fn capture(
        &mut self,
        name: &str,
        query: &CaptureQuery,
    ) -> Result<StartedCapture, Problem> {
        let mut ports = self.ports.values();
        let port = ports.find(|port| port.name == name).map(|port| port.id);
        let port = port.ok_or_else(|| Problem::no_such("port", name))?;
        self.captures.last = self.captures.last.wrapping_add(1);
        let id = self.captures.last;
        let command = command(id, port, query)?;
        let ring = command.ring;
        self.captures.room_for(ring)?;
        let mut memory = None;
        self.switch
            .request(
                SwitchCommand::Capture(command),
                &[],
                |event, mut fds| match event {
                    SwitchEvent::Capture { id: of, threads } if of == id => {
                        memory = fds.pop().map(|file| (file, threads));
                        None
                    }
                    other => Some(other),
                },
            )
            .map_err(unavailable)?;
        let held = Arc::new(());
        let capture = Capture {
            held: Arc::downgrade(&held),
            ring,
        };
        self.captures.open.insert(id, capture);
        let (file, threads) =
            memory.ok_or_else(|| Problem::internal("the switch sent no memory for a capture"))?;
        let region = Region::map(&file, threads.into(), ring).map_err(unavailable)?;
        let reader = region.reader().map_err(unavailable)?;
        Ok(StartedCapture {
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
        let ended = self.switch.send(SwitchCommand::EndCapture(id), &[]);
        ended.map(drop).map_err(unavailable)
    }

    /// Ends all captures.
    pub(super) fn end_captures(&mut self) -> io::Result<()> {
        while let Some((id, _)) = self.captures.open.pop_first() {
            self.switch.send(SwitchCommand::EndCapture(id), &[])?;
        }
        Ok(())
    }

    /// Ends captures whose clients are gone without having ended them.
    pub(super) fn end_orphaned_captures(&mut self) -> io::Result<()> {
        let open = self.captures.open.iter();
        let orphans = open.filter(|(_, capture)| capture.held.strong_count() == 0);
        for id in orphans.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.captures.open.remove(&id);
            self.switch.send(SwitchCommand::EndCapture(id), &[])?;
        }
        Ok(())
    }
}
