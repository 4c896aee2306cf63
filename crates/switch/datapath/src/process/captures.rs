//! Captures of ports: the session thread allocates the memory and adds the taps to the workers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use filter::Filter;
use ipc::capture::{CaptureCommand, MAX_CAPTURES, Region};
use ipc::switching::SwitchEvent;
use port::PortId;

use crate::forward::tap::Tap;
use crate::worker::workers::Workers;

/// A capture that has not ended.
#[derive(Debug)]
struct OpenCapture {
    port: PortId,
    region: Region,
}

/// All captures that have not ended.
#[derive(Debug, Default)]
pub(super) struct Captures {
    open: BTreeMap<u32, OpenCapture>,
}

impl Captures {
    /// Starts a capture. Returns the report to control, and the memory of the capture.
    pub(super) fn start(
        &mut self,
        order: &CaptureCommand,
        workers: &Workers,
    ) -> Result<(SwitchEvent, OwnedFd), String> {
        let open = &mut self.open;
        if open.len() >= MAX_CAPTURES || open.contains_key(&order.id) {
            return Err(format!("there are {} captures already", open.len()));
        }
        let filter = Filter::parse(&order.filter).map_err(|e| e.to_string())?;
        let filter = Arc::new(filter);
        let threads = workers.count();
        let (region, file) = Region::create(threads, order.ring).map_err(|e| e.to_string())?;
        let writers = (0..threads).map(|thread| region.writer(thread));
        let writers: Vec<_> = writers
            .collect::<Result<_, _>>()
            .map_err(|e| e.to_string())?;
        for (thread, writer) in writers.into_iter().enumerate() {
            let tap = Tap {
                id: order.id,
                port: order.port,
                filter: Arc::clone(&filter),
                snaplen: order.snaplen,
                way: order.way,
                only_drops: order.only_drops,
                writer,
            };
            workers.on(thread, move |w| w.switch.add_tap(tap));
        }
        let port = order.port;
        open.insert(order.id, OpenCapture { port, region });
        let report = SwitchEvent::Capture {
            id: order.id,
            threads: threads as u16,
        };
        Ok((report, file))
    }

    /// Ends a capture. A capture that has ended before is no error.
    pub(super) fn end(&mut self, id: u32, workers: &Workers) {
        if let Some(open) = self.open.remove(&id) {
            workers.each(move |w| w.switch.remove_tap(id));
            open.region.end();
        }
    }

    /// Ends the captures of one port, or all captures.
    pub(super) fn end_all(&mut self, of: Option<PortId>, workers: &Workers) {
        let open = self.open.iter();
        let matches = |open: &OpenCapture| of.is_none_or(|port| port == open.port);
        let ids: Vec<u32> = open
            .filter(|(_, o)| matches(o))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().for_each(|id| self.end(id, workers));
    }
}
