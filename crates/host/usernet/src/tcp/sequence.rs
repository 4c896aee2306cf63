//! Order of sequence numbers, which wrap (RFC 9293, section 3.4).

/// Returns whether `a` is before `b`.
pub(super) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Returns whether `a` is after `b`.
pub(super) fn after(a: u32, b: u32) -> bool {
    before(b, a)
}
