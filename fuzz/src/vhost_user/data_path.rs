//! The back end that the session calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memory::iotlb::{Access, Iotlb};
use memory::{GuestMemory, Segment};
use sys::foreign::ForeignFd;
use virtio::queue::{Queue, QueueFault, QueueMemory};
use virtio::vhost_user::{Backend, QueueSetup};
use wire::virtio::vhost_user::{IotlbMessage, iotlb_type};

use crate::guarded::PAGE;

/// Pages of one UPDATE that are remembered.
const MOST_PAGES: u64 = 64;

/// A data path that serves its queues on demand.
#[derive(Default)]
pub(crate) struct DataPath {
    pub(crate) running: BTreeMap<u16, (QueueSetup, Queue)>,
    pub(crate) memory: Option<Arc<GuestMemory>>,
    /// I/O virtual pages of all UPDATEs; others lead nowhere.
    named: BTreeSet<u64>,
    /// Tables may hold anything.
    pub(crate) spoilt: bool,
}

impl Backend for DataPath {
    fn set_memory(&mut self, mem: Option<Arc<GuestMemory>>) {
        for (_, queue) in self.running.values_mut() {
            let mem = mem.clone().expect("queues run on memory");
            let went_on = queue.set_memory(mem);
            assert!(went_on.is_ok() || went_on.err() == queue.fault());
            assert_ne!(
                queue.fault(),
                Some(QueueFault::UnmappedRing),
                "an area that is gone"
            );
        }
        self.memory = mem;
    }

    fn start_queue(&mut self, index: u16, setup: QueueSetup) -> Result<(), String> {
        assert_eq!(index, setup.index);
        assert!(setup.features.beyond_legacy().is_empty());
        assert!(setup.mem.regions().len() == self.memory.as_ref().map_or(0, |m| m.regions().len()));
        let at = setup.position;
        let mem = QueueMemory {
            memory: setup.mem.clone(),
            iotlb: setup.iotlb.clone(),
        };
        let queue = match setup.inflight.clone() {
            Some(part) => Queue::with_inflight(mem, setup.layout, setup.features, at, part),
            None => Queue::new(mem, setup.layout, setup.features, at),
        };
        let queue = queue.map_err(|fault| fault.to_string())?;
        let before = self.running.insert(index, (setup, queue));
        assert!(before.is_none(), "started twice");
        Ok(())
    }

    fn stop_queue(&mut self, index: u16) -> Option<u32> {
        let (_, queue) = self.running.remove(&index).expect("it ran");
        Some(queue.position())
    }

    fn enable_queue(&mut self, index: u16, on: bool) {
        self.running.get_mut(&index).expect("it runs").0.enabled = on;
    }

    fn set_call(&mut self, index: u16, call: Option<ForeignFd>) {
        self.running.get_mut(&index).expect("it runs").0.call = call;
    }

    fn queue_refused(&mut self, _: u16, reason: &str) {
        assert!(!reason.is_empty());
    }

    fn reset(&mut self) {
        assert!(self.running.is_empty());
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        if mtu > 9000 {
            Err("too large".into())
        } else {
            Ok(())
        }
    }
}

impl DataPath {
    /// Notes a message about translations that the front end sends.
    pub(crate) fn note(&mut self, payload: &[u8]) {
        let message = payload.try_into().ok().map(IotlbMessage::parse);
        if let Some(message) = message.filter(|message| message.kind == iotlb_type::UPDATE) {
            let first = message.iova / PAGE;
            let pages = (message.size / PAGE).min(MOST_PAGES);
            self.named.extend(first..first + pages);
        }
    }

    /// Serves a few chains of each queue; those that fault are reported.
    pub(crate) fn serve(&mut self) -> Vec<(u16, QueueFault)> {
        let mut faults = Vec::new();
        for (index, (setup, queue)) in &mut self.running {
            let mut segs: Vec<Segment> = Vec::new();
            queue.ask_for_buffers(4);
            for _ in 0..4 {
                let writable = index % 2 == 0;
                let taken = if writable {
                    queue.take_writable(&mut segs)
                } else {
                    queue.take_readable(&mut segs)
                };
                if let Some(iotlb) = setup.iotlb.as_ref().filter(|_| !self.spoilt) {
                    check(&segs, iotlb, &self.named, writable);
                }
                match taken {
                    Ok(Some(chain)) => queue.put(chain, 0),
                    Ok(None) => break,
                    Err(fault) => {
                        faults.push((*index, fault));
                        break;
                    }
                }
            }
            queue.publish();
            let _ = queue.needs_notify();
            queue.set_kicks(true);
        }
        faults
    }
}

/// Buffers lie where the table leads now: nothing is used that was revoked.
fn check(segs: &[Segment], iotlb: &Iotlb, named: &BTreeSet<u64>, writable: bool) {
    let access = if writable {
        Access::WRITE
    } else {
        Access::READ
    };
    for seg in segs {
        let end = seg.gpa + u64::from(seg.len);
        for gpa in (seg.gpa / PAGE * PAGE..end).step_by(PAGE as usize) {
            let leads_there = |page: &u64| {
                let hit = iotlb.look_up(page * PAGE, access);
                hit.is_some_and(|hit| hit.gpa == gpa)
            };
            assert!(named.iter().any(leads_there), "{gpa:#x} is not granted");
        }
    }
}
