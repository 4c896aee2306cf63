//! Captures of ports and mirrors: what is shown that never got as far as a flow, and who looks on.

use std::sync::Arc;

use channel::capture::Way;
use port::{DropReason, Port, PortId};

use super::Switch;
use crate::mirror::Mirror;
use crate::parking::Waiting;
use crate::watch::{Rest, Shown, Tap};

impl<P: Port> Switch<P> {
    /// Shows frames to somebody from now on.
    pub fn add_tap(&mut self, tap: Tap) {
        self.fabric.watch.get_or_insert_default().add(tap);
    }

    /// Shows nothing more to the capture of this number.
    pub fn remove_tap(&mut self, id: u32) {
        self.remove_taps(|tap| tap.id == id);
    }

    /// The port goes away.
    pub(super) fn remove_taps_of(&mut self, port: PortId) {
        self.remove_taps(|tap| tap.port == port);
    }

    fn remove_taps(&mut self, leaves: impl Fn(&Tap) -> bool) {
        let Some(watch) = &mut self.fabric.watch else {
            return;
        };
        watch.remove(leaves);
        self.stop_idle_watch();
    }

    /// Copies frames as these mirrors say, and no others, from now on.
    pub fn set_mirrors(&mut self, mirrors: Arc<[Mirror]>) {
        let watch = self.fabric.watch.get_or_insert_default();
        watch.set_mirrors(mirrors);
        self.stop_idle_watch();
    }

    /// Where nobody looks on, nothing is spent on it.
    fn stop_idle_watch(&mut self) {
        if self.fabric.watch.as_ref().is_some_and(|w| w.is_empty()) {
            self.fabric.watch = None;
        }
    }

    /// Shows a frame of the batch that goes no further.
    #[cold]
    pub(super) fn show_lost(&mut self, index: usize, from: PortId, reason: DropReason) {
        if self.fabric.watch.is_none() {
            return;
        }
        let (headers, payload, offload) = self.batch.split(index);
        let shown = Shown {
            headers: headers.as_slice(),
            rest: Rest::Leased(&payload),
            offload: *offload,
        };
        self.fabric.show(from, Way::In, shown, Some(reason));
        // Nothing is held while the batch's own receivers are told what comes: not what copies went to either.
        self.fabric.flush();
    }

    /// Shows frames that have waited for control in vain.
    pub(super) fn show_undecided(&mut self, waiting: &Waiting) {
        if self.fabric.watch.is_none() {
            return;
        }
        for frame in &waiting.frames {
            let shown = Shown {
                headers: frame.headers.as_slice(),
                rest: Rest::Own(&frame.payload),
                offload: frame.offload,
            };
            let reason = DropReason::UpcallTimeout;
            self.fabric
                .show(waiting.port(), Way::In, shown, Some(reason));
        }
        // Copies that a mirror made of them.
        self.fabric.flush();
        self.fabric.pay(0);
    }
}
