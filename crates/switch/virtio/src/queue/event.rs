//! Event indices (virtio 1.3, section 2.7.10).

/// `vring_need_event` of the standard. Returns whether `event` lies in `old..new`, all modulo 2^16:
/// the step from `old` to `new` passed the index at which the other side wants a notification.
#[inline]
#[must_use]
pub(super) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
