//! The back end that the session calls.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::{GuestMemory, Segment};
use virtio::queue::{Queue, QueueFault};
use virtio::vhost_user::{Backend, QueueSetup};

/// A data path that serves its queues on demand.
#[derive(Default)]
pub(crate) struct DataPath {
    pub(crate) running: BTreeMap<u16, (QueueSetup, Queue)>,
    pub(crate) memory: Option<Arc<GuestMemory>>,
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
        if setup.iotlb.is_some() {
            return Err("queues with translations are not served here".into());
        }
        let (mem, at) = (setup.mem.clone(), setup.position);
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

    fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
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
    /// Serves a few chains of each queue; those that fault are reported.
    pub(crate) fn serve(&mut self) -> Vec<(u16, QueueFault)> {
        let mut faults = Vec::new();
        for (index, (_, queue)) in &mut self.running {
            let mut segs: Vec<Segment> = Vec::new();
            for _ in 0..4 {
                let taken = if index % 2 == 0 {
                    queue.take_writable(&mut segs)
                } else {
                    queue.take_readable(&mut segs)
                };
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
